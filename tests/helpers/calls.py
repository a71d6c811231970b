"""Which programs sources call, found by reading: first words of what is run, words where a shell expects a command.

A name that is put together while it runs is not found.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

MODULES = ("subprocess", "shutil", "os", "namespace", "needs")
FUNCTIONS = ("run", "Popen", "call", "check_call", "check_output", "which", "execvp", "inside", "find")
HANDED_ON = ("attempt", "run_command", "pexec", "cmd", "_run", "_can")  # ours, or Mininet's, that hand a command on
WORD = re.compile(r"[a-zA-Z][\w.+-]*\Z")
PROGRAM_IN_TEXT = re.compile(r"^(?:import|from) \w+", re.MULTILINE)


@cache
def in_python(source: str) -> frozenset[str]:
    """Raises: SyntaxError."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    lists: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            lists.setdefault(node.targets[0].id, []).append(node.value)
    runners = {*HANDED_ON, *(node.name for node in nodes if isinstance(node, ast.FunctionDef) and _hands_on(node))}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            lines = [keyword.value for keyword in node.keywords if keyword.arg == "program"]
            commands = [line for line in lines if not isinstance(line, ast.Constant)]
            if _runs(node, runners):
                commands += node.args[:1]
            for command in commands:
                found.update(_programs(command, lists))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PROGRAM_IN_TEXT.search(node.value):
            try:
                found |= in_python(node.value)  # a program for another Python
            except SyntaxError:
                continue
    return frozenset(found)


def _hands_on(function: ast.FunctionDef) -> bool:
    """Whether it runs its own arguments: def run(*command): subprocess.run(command)."""
    own = function.args.vararg
    if own is None:
        return False
    inner = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _runs(node, set()) and node.args]
    return any(isinstance(call.args[0], ast.Name) and call.args[0].id == own.arg for call in inner)


def _runs(call: ast.Call, runners: set[str]) -> bool:
    if isinstance(call.func, ast.Attribute):
        module = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
        return call.func.attr in runners or (module in MODULES and call.func.attr in FUNCTIONS)
    return isinstance(call.func, ast.Name) and call.func.id in runners


def _programs(command: ast.expr, lists: dict[str, list[ast.expr]]) -> Iterator[str]:
    """The program of a command, and that of one which stands behind it: [*tie, "true"]."""
    if isinstance(command, ast.Name):
        for value in lists.get(command.id, []):
            if isinstance(value, ast.List | ast.Tuple):
                yield from _programs(value, lists)
    elif isinstance(command, ast.Constant) and isinstance(command.value, str):
        yield from in_shell(command.value)
    elif isinstance(command, ast.List | ast.Tuple):
        parts = list(command.elts)
        while parts and isinstance(parts[0], ast.Starred):
            yield from _programs(parts.pop(0).value, lists)  # type: ignore[attr-defined]
        texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
        if texts and isinstance(texts[0], str) and WORD.match(texts[0]):
            yield texts[0]
            if texts[0] in ("sh", "bash") and texts[1:2] == ["-c"] and isinstance(texts[-1], str):
                yield from in_shell(texts[-1])


PLACE = re.compile(
    r"(?:^|[;&|{!(]|\$\(|\b(?:then|do|else|if|while|until|elif|exec|command -v|env)\s)\s*(?:\w+=\S*\s+)*"
    r"([a-zA-Z][\w.+-]*)(?=[\s;)|]|$)",
    re.MULTILINE,
)
BUILT_IN = {
    "break", "case", "cd", "command", "compgen", "continue", "declare", "do", "done", "echo", "elif", "else", "esac",
    "eval", "exec", "exit", "export", "fi", "for", "function", "if", "in", "local", "printf", "pwd", "read", "return",
    "set", "shift", "source", "then", "trap", "type", "ulimit", "umask", "unset", "until", "wait", "while",
}  # fmt: skip


def in_shell(text: str) -> set[str]:
    """Less what a shell has built in, and functions that the text defines. Words of messages may be among them."""
    text = re.sub(r"(^|\s)#.*", r"\1", text).replace("\\\n", " ")
    functions = set(re.findall(r"^\s*(\w+)\(\)", text, re.MULTILINE))
    return {match[1] for match in PLACE.finditer(text)} - BUILT_IN - functions
