"""What more than one test module uses: fake environments, graphs, runs, checks."""
