"""The job API: register, change, watch and wait for jobs."""
