"""The filters of kube-scheduler, judged on objects that were read before: which nodes a pod is refused by, and why."""
