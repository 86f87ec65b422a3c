"""Evictions: who goes for whom. Five policies, one engine (docs/preemption.md, docs/spec/queues.md#5.5 and #7).

| policy | for | may go | searched by | ended by |
|---|---|---|---|---|
| `POD` | a pod that no node takes | lower priorities on the node | `victims` | deletion |
| `QUOTA` | the same, in a quota that says so | lower priorities in the quota, too | `victims` | deletion |
| `COMPLETION` | one that kube-scheduler evicts for | lower priorities on its nodes | `victims` | kube-scheduler |
| `GROUP` | a pod group that doesn't fit | lower priorities on all nodes | `group_victims` | deletion |
| `RECLAIM` | who waits for what is lent | teams beyond their nominal | `lent` | eviction API |

Of PodDisruptionBudgets as few are exceeded as can be, as by kube-scheduler; by `RECLAIM` none.

Each goes the same way. `candidates` list who may go. A search finds whom it can't do without: all are gone, or those
who seem best, on nodes as they would be (`search`), and each is given back without whom it is enough. `limits` say how
many may go for a namespace. In a dry run that is said, and no more. Else `decisions` keep the nodes before the filter
is answered, so that the next pod doesn't take what is freed, and write to the cluster afterwards; and `executor` alone
ends pods. The leader's rounds of `RECLAIM` are in controller/reclaim.py, as who waits for a quota is known there.

What must not happen: that a pod is evicted that could have stayed, for a pod that doesn't fit then either, of the same
or a higher priority, or again and again for a namespace that doesn't use it.
"""
