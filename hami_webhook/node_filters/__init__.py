"""The filters of kube-scheduler, evaluated on objects in memory: the nodes that refuse a pod, with reasons."""
