"""What a rank does about packets that are lost: questions, resends, and sums that it fetches."""
