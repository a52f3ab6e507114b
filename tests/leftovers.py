"""What the ranks of a simulated job leave behind."""

from typing import Any

from mpitrain.simulation.job import Job


def left_behind(job: Job[Any]) -> list[str]:
    """Messages that nobody has taken, receives that nothing came for, collectives that were not joined by all."""
    groups = [job._world]
    for group in groups:  # and those that are made of it
        groups.extend(group._made.values())
    found = [each.name for group in groups for each in group.collectives.values()]
    for group in groups:
        for member, box in zip(group.members, group.boxes, strict=True):
            messages = [message for of_tag in box._arrived.values() for message in of_tag.values()]
            found += [f"rank {member}: a message from {each.source} with tag {each.tag}" for each in messages]
            found += [f"rank {member}: a receive from {source} with tag {tag}" for source, tag, _, _ in box._posted]
    return found
