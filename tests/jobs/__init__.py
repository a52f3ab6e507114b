"""Tests of jobs/ on a real Slurm."""
