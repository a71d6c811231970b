# syntax=docker/dockerfile:1
#
# Two images; docker-compose.yml says how they are used.
#
#   docker build --target sa-atp  -t sa-atp .           switch, parameter server, workers: no privileges
#   docker build --target testbed -t sa-atp-testbed .   Mininet, BMv2 and p4c as well: run it with --privileged
#
# The first has the wheel, and the testbed a checkout, which is set up by the same script as elsewhere (scripts/lib/setup.sh). The
# machine that these files were written on has no container engine: the commands inside were run as plain processes
# (tests/scripts/test_compose.py, test_wheel.py), the builds not.

FROM debian:bookworm-slim AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && python3 -m venv /venv
WORKDIR /src
COPY . .
RUN /venv/bin/pip wheel --no-deps --wheel-dir /wheels .

FROM debian:bookworm-slim AS sa-atp
ENV SA_ATP_IMAGE=sa-atp SA_ATP_CACHE=/var/cache/sa-atp PATH=/opt/sa-atp/.venv/bin:$PATH PYTHONUNBUFFERED=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home sa-atp \
    && install -d -o sa-atp -g sa-atp /var/cache/sa-atp /ranks /runs
WORKDIR /opt/sa-atp
COPY --from=wheel /wheels /wheels
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv .venv \
    && .venv/bin/pip install --extra-index-url https://download.pytorch.org/whl/cpu "$(echo /wheels/*.whl)[torch,report,metrics]"
COPY docker docker
# compiled pipelines, ranks, results: what containers share
VOLUME ["/var/cache/sa-atp", "/ranks", "/runs"]
USER sa-atp
ENTRYPOINT ["sa-atp"]
CMD ["doctor"]

# p4lang/p4c is built on p4lang/behavioral-model, so it has both the compiler and simple_switch_grpc.
FROM p4lang/p4c:latest AS testbed
ENV SA_ATP_VENV=/opt/sa-atp/.venv SA_ATP_CACHE=/var/cache/sa-atp PATH=/opt/sa-atp/.venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /opt/sa-atp
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip bash -c 'source scripts/lib/setup.sh && setup_mininet && setup torch report notebook cluster shell metrics dev mininet' \
    && rm -rf /var/lib/apt/lists/*
VOLUME ["/var/cache/sa-atp", "/opt/sa-atp/runs"]
ENTRYPOINT []
CMD ["scripts/demo", "--mininet"]
