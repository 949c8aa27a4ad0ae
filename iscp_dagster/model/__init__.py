"""What is declared and remembered: tables, jobs, specs, moments, errors; pure."""
