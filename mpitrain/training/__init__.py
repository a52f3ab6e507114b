"""What a rank trains with: its session, which a protocol gets as a whole, its gradients and its inputs."""
