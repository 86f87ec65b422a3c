"""Quotas that mean what they say, as `spec`: those of HAMi's and Kubernetes' documentation, and others."""

from __future__ import annotations

from typing import Any


def _priority(name: str) -> dict[str, Any]:
    return {"matchExpressions": [{"operator": "In", "scopeName": "PriorityClass", "values": [name]}]}


RIGHT: dict[str, dict[str, Any]] = {
    # HAMi: userguide/nvidia-device/using-resourcequota, and its Chinese version
    "hami": {"hard": {"limits.nvidia.com/gpu": "2", "limits.nvidia.com/gpumem": "3000"}},
    "hami-zh": {"hard": {"limits.nvidia.com/gpu": "2", "limits.nvidia.com/gpumem": "2000"}},
    # Kubernetes: concepts/policy/resource-quotas and tasks/administer-cluster
    "compute": {
        "hard": {
            "requests.cpu": "1",
            "requests.memory": "1Gi",
            "limits.cpu": "2",
            "limits.memory": "2Gi",
            "requests.nvidia.com/gpu": "4",
            "requests.ephemeral-storage": "2Gi",
        }
    },
    "objects": {
        "hard": {
            "configmaps": "10",
            "persistentvolumeclaims": "4",
            "pods": "4",
            "services.loadbalancers": "2",
            "services.nodeports": "0",
            "count/deployments.apps": "2",
            "count/pods": "3",
            "gold.storageclass.storage.k8s.io/requests.storage": "500Gi",
        }
    },
    "pods-high": {"hard": {"cpu": "1000", "memory": "200Gi", "pods": "10"}, "scopeSelector": _priority("high")},
    "pods-cluster-services": {"hard": {}, "scopeSelector": _priority("cluster-services")},
    "disable-cross-namespace-affinity": {
        "hard": {"pods": "0"},
        "scopeSelector": {"matchExpressions": [{"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}]},
    },
    # others
    "extended-resources-of-others": {"hard": {"requests.example.com/foo": "2", "limits.example.com/foo": "2"}},
    "mig-of-nvidia-s-device-plugin": {"hard": {"requests.nvidia.com/mig-1g.5gb": "7"}},
    "shared-of-nvidia-s-device-plugin": {"hard": {"requests.nvidia.com/gpu.shared": "8"}},
    "cards-only": {"hard": {"limits.nvidia.com/gpu": "8"}},
    "all-three": {
        "hard": {
            "limits.nvidia.com/gpu": "4",
            "limits.nvidia.com/gpumem": "200k",
            "limits.nvidia.com/gpucores": "200",
        }
    },
    "none-at-all": {"hard": {"limits.nvidia.com/gpu": "0", "limits.nvidia.com/gpumem": "0"}},
    "by-priority": {
        "hard": {"limits.nvidia.com/gpumem": "40000"},
        "scopeSelector": _priority("low"),
    },
    "not-for-jobs": {"hard": {"limits.nvidia.com/gpu": "2"}, "scopes": ["NotTerminating"]},
    "gibibytes-of-metax": {"hard": {"limits.metax-tech.com/vmemory": "64Gi", "limits.metax-tech.com/sgpu": "2"}},
    "units-of-metax": {"hard": {"limits.metax-tech.com/vmemory": "64"}},
    "bytes-of-koordinator": {"hard": {"limits.koordinator.sh/gpu-memory": "64Gi"}},
    "ascend": {"hard": {"limits.huawei.com/Ascend910B4": "8", "limits.huawei.com/Ascend910B4-memory": "262144"}},
    "two-vendors": {"hard": {"limits.nvidia.com/gpu": "8", "limits.hygon.com/dcunum": "4"}},
}
