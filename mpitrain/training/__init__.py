"""What a rank trains with: its context, handed whole to a protocol, its gradients and its inputs."""
