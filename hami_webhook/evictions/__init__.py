"""Evictions: six policies by which pods are evicted for others, and one engine.

Source: docs/preemption.md, docs/spec/queues.md#5.5 and #7.

| policy | for | may go | searched by | ended by |
|---|---|---|---|---|
| `POD` | a pod that no node takes | lower priorities on the node | `victims` | deletion |
| `QUOTA` | the same, in a quota that says so | lower priorities in the quota, too | `victims` | deletion |
| `COMPLETION` | one that kube-scheduler evicts for | lower priorities on its nodes | `victims` | kube-scheduler |
| `GROUP` | a pod group that doesn't fit | lower priorities on all nodes | `group_victims` | deletion |
| `RECLAIM` | a pod that waits for what is lent | teams beyond their nominal | `lent` | eviction API |
| `DEFRAG` | a person who wants cards together | lower priorities with an owner | `moves` | eviction API |

Of PodDisruptionBudgets as few are exceeded as can be, as by kube-scheduler; by `RECLAIM` and `DEFRAG` none.

Each policy goes the same way. `candidates` lists the pods that may go. A search takes all of them, or those that seem
best, off the nodes (`search`), and gives back each one that the preemptor fits without. `limits` says how many may go
for a namespace. A dry run only says it. Else `decisions` keeps the nodes before the filter is answered, so that the
next pod doesn't take what is freed, and writes to the cluster afterwards; `executor` alone ends pods. The leader's
rounds of `RECLAIM` are in queueing/reclaim.py, which knows the pods that wait for a quota; `DEFRAG` is run by
`kubectl hami defrag` alone, with the rights of its user.

What must not happen: a pod goes that could have stayed, or for a pod that doesn't fit then either, or for one that has
no higher priority; and nobody goes again and again for a namespace that doesn't use what is freed.
"""
