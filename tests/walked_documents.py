"""Which commands of README and docs run as they are printed, and which don't, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

from builders import pod
from document_steps import blocks

ROOT = Path(__file__).parents[1]
STEPS = {"docs/adding-a-vendor.md": "tests/devices/test_adding_a_vendor.py"}
"""Pages whose commands need the files that they have the reader write, with the test that does it all."""
FIRST = "docs/getting-started.md"
"""The page that makes the cluster and installs the program."""
LAST = ("docs/install.md", "docs/development.md")
"""The page that takes the program away, and the one that takes the cluster away."""

DOCKER = "needs a container daemon and an image registry"
CI = ".ci/run runs it"
INSTALL = "docs/install.md runs it"
FORWARD = "the dev cluster's kubelet forwards no ports"
INDEX = "asks a package index for newer versions"
HELM = (
    "helm install hami-webhook manifests/chart -n hami-system --create-namespace "
    "--set image.registry=REGISTRY,image.tag=TAG"
)
NOT_RUN = {
    "README.md": {
        "make demo   # simulates a cluster, serves the webhook over HTTPS, and sends six pods to it": CI,
        "make test   # the fast test suite": CI,
        "docker build -t REGISTRY/hami-webhook:TAG . && docker push REGISTRY/hami-webhook:TAG": DOCKER,
        "make deploy IMAGE=REGISTRY/hami-webhook:TAG   # on the cluster of the current kubeconfig; "
        "waits for the rollout": INSTALL,
        f"{HELM} --wait": INSTALL,
    },
    "docs/getting-started.md": {"hack/dev-cluster down": "docs/development.md runs it"},
    "docs/room.md": {
        "kubectl hami defrag --want 4xH100 --priority-class training": (
            "the one node has no such cards; tests/e2e/test_room.py has nodes to move pods between"
        ),
        "hami-webhook simulate --cluster cluster.yaml --waiting --add 2xh200 --template node.yaml": (
            "the reader has no such node; tests/simulate/test_other_nodes.py has one"
        ),
        "kubectl hami simulate --replay 24 --prometheus http://prometheus.monitoring:9090 --add 1xgpu-1": (
            "no Prometheus is there; tests/e2e/test_room.py has one"
        ),
        "hami-webhook simulate --replay 24 --prometheus http://localhost:9090 --cluster cluster.yaml --remove gpu-3": (
            "no Prometheus is there; tests/monitoring/test_recorded_day.py has one"
        ),
    },
    "docs/used.md": {
        f"kubectl hami advise --prometheus http://prometheus.monitoring:9090{flags}": (
            "no Prometheus is there; tests/kubectl/test_advise.py"
        )
        for flags in ("", " -A --since 30d -o json")
    },
    "docs/development.md": {
        ".venv/bin/python -m hack.mutation --survivors-of .mutation/seed-1.jsonl --result .mutation/again.jsonl": (
            "goes on from a run of make mutation, which takes hours"
        ),
        ".venv/bin/python -m hack.lock             # after a change of pyproject.toml; needs uv on the PATH": INDEX,
        ".venv/bin/python -m hack.lock --upgrade   # the newest versions": INDEX,
        "docker build $(PYTHON_DIGEST=sha256:… hack/image arguments) -t REGISTRY/hami-webhook:X.Y.Z .": DOCKER,
    },
    "docs/in-hami-chart.md": {
        "docker build --target root -t REGISTRY/hami-webhook-root:TAG . "
        "&& docker push REGISTRY/hami-webhook-root:TAG": DOCKER,
        "helm upgrade hami hami-charts/hami -n kube-system --reuse-values "
        "--set scheduler.extender.image.registry=REGISTRY \\\n"
        "  --set scheduler.extender.image.repository=hami-webhook-root --set scheduler.extender.image.tag=TAG": (
            "HAMi's chart is elsewhere; tests/e2e/test_in_hami_chart.py runs its Deployment"
        ),
        "CA=$(kubectl get mutatingwebhookconfiguration hami-webhook "
        "-o jsonpath='{.webhooks[0].clientConfig.caBundle}')": "HAMi's chart is elsewhere",
        'sed "s|CA_BUNDLE|$CA|" manifests/in-hami-chart/claims.yaml | kubectl apply -f -': (
            "HAMi's chart is elsewhere; tests/e2e/test_claims_charged.py applies it in a dry run"
        ),
    },
    "docs/install.md": {
        "docker build -t REGISTRY/hami-webhook:TAG . && docker push REGISTRY/hami-webhook:TAG": DOCKER,
        "helm template hami hami-charts/hami -n hami-system --show-only 'templates/device-plugin/*.yaml' \\\n"
        "  --show-only templates/scheduler/device-configmap.yaml | kubectl apply -f -": "HAMi's chart is elsewhere",
        "make deploy CONFIG=device-config.yaml IMAGE=REGISTRY/hami-webhook:TAG": (
            "tests/e2e/test_deploy.py::test_a_pod_of_a_tenant_is_admitted_charged_placed_and_debited runs it"
        ),
        "kubectl get crd certificates.cert-manager.io issuers.cert-manager.io   # cert-manager must be installed": (
            "cert-manager isn't here"
        ),
        "make deploy OVERLAY=cert-manager IMAGE=REGISTRY/hami-webhook:TAG": (
            "tests/e2e/test_deploy.py::test_the_certificate_comes_from_cert_manager runs it"
        ),
        "make deploy OVERLAY=drop-in IMAGE=REGISTRY/hami-webhook:TAG": (
            "tests/e2e/test_deploy.py::test_drop_in_charges_for_what_hami_places runs it"
        ),
        "docker pull registry.k8s.io/kube-scheduler:v1.36.3": DOCKER,
        "docker tag registry.k8s.io/kube-scheduler:v1.36.3 REGISTRY/kube-scheduler:v1.36.3": DOCKER,
        "docker push REGISTRY/kube-scheduler:v1.36.3": DOCKER,
        "docker push REGISTRY/hami-webhook:TAG": DOCKER,
    },
    "docs/kubectl.md": {
        "kubectl krew install --manifest-url=https://example.org/krew.yaml   # a release's file; needs uv or pipx": (
            "needs a release; tests/packaging/test_release.py::test_the_plugin_is_what_krew_installs"
        ),
        "pip install './hami_webhook-VERSION-py3-none-any.whl[cli,ui]'       # or its wheel: kubectl finds "
        "kubectl-hami on the PATH": (
            "needs a release; tests/packaging/test_release.py::test_the_plugin_is_what_krew_installs"
        ),
    },
    "docs/metrics.md": {
        **{
            f"kubectl -n hami-system port-forward deployment/{name} {port}:9395": FORWARD
            for name, port in (("hami-webhook", 19395), ("hami-webhook-controller", 19396), ("hami-scheduler", 19397))
        },
        **{
            f"hami-webhook report --prometheus http://prometheus.monitoring:9090 {flags}": (
                "no Prometheus is there; tests/cli/test_report.py"
            )
            for flags in (
                "--since 30d",
                "--since 12h --output csv",
                "--output html",
                "--by user    # what each user's pods held",
            )
        },
    },
    "docs/monitor.md": {
        "helm install hami-daemon manifests/hami-daemon -n koordinator-system \\\n"
        "  --set daemon.vgpuMonitor.image.repository=REGISTRY/hami-webhook": (
            "Koordinator isn't here; tests/e2e/test_hami_daemon.py tries the chart"
        ),
    },
    "docs/time.md": dict.fromkeys(
        ("kubectl hami simulate train.yaml", "kubectl hami simulate train.yaml --at 2026-12-01T08:00:00Z"),
        "the reader has no such file; tests/kubectl/test_replay.py has one",
    ),
    "docs/ui.md": {
        "kubectl hami ui              # prints http://127.0.0.1:PORT/#TOKEN; Ctrl-C ends it": (
            "ends with Ctrl-C; tests/e2e/test_ui.py runs it"
        ),
        "kubectl hami ui --port 8099": "ends with Ctrl-C; tests/e2e/test_ui.py runs it",
        "kubectl hami ui --prometheus http://prometheus.monitoring:9090": (
            "ends with Ctrl-C, and no Prometheus is there; tests/kubectl/test_ui_metrics.py"
        ),
    },
}
"""By page, the commands that can't run here, and why."""

FAILS = {
    "docs/getting-started.md": {"kubectl apply -f manifests/examples/getting-started/pods.yaml": 1},
    "docs/kubectl.md": {"kubectl hami explain deployment serve -n team-a": 1},
    "docs/install.md": {
        "kubectl diff -f install.yaml          # what will change": 1,
        "kubectl apply -f manifests/examples/quotas/pods.yaml": 1,
    },
}
"""The commands that end with another status than 0, because something is refused, differs, or is at fault."""

TEAM = "kubectl create namespace team-a"
RAY_CLUSTER = json.dumps(
    {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray"},
        "spec": {"headGroupSpec": {"template": pod("head", gpu=1, mem=1000)}},
    }
)
UNHELM = "helm uninstall hami-webhook -n hami-system --wait && kubectl delete namespace hami-system"
FILE = (
    "kubectl kustomize manifests/overlays/default | sed s#hami-webhook:latest#REGISTRY/hami-webhook:TAG# > install.yaml"
)
READY = {
    "docs/explain.md": (
        f"{TEAM} && sed '/^---/,$d; s/train/serve/' manifests/examples/getting-started/pods.yaml > pod.yaml "
        f"&& kubectl apply -f pod.yaml && echo '{RAY_CLUSTER}' > raycluster.yaml"
    ),
    "docs/install.md": (
        f"cp manifests/device-config/device-config.yaml . && {FILE} && sha256sum install.yaml > SHA256SUMS"
    ),
    "docs/queues.md": TEAM,
    "docs/quotas.md": TEAM,
    "docs/testing.md": (
        "mkdir policy-tests && cp -R manifests/examples/tests/policy policy-tests && "
        "sed -i s#../../cluster#../../manifests/examples/cluster# policy-tests/policy/hami-test.yaml"
    ),
}
"""What the reader of a page has already: files of their own, a namespace."""

BEFORE = {
    "docs/quotas.md": {
        "kubectl annotate deployment web -n team-a --overwrite woken=1": (
            "kubectl create deployment web -n team-a --image=registry.invalid/none"
        ),
    },
    "docs/install.md": {
        f"{HELM} --wait": "make undeploy",
        "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration hami-webhook-admission": (
            "kubectl apply -f install.yaml"
        ),
        UNHELM: f"kubectl delete crd acceleratorquotas.hami.io && {HELM}",
    },
}
"""What lies between the ways of a page of which a reader goes only one."""

SHOWN = {
    "docs/explain.md": {
        "default/waiting fits on none of 24 nodes": "tests/explain/test_tables.py has the nodes",
        "Waits for quota gpu-quota: needs 2 nvidia.com/gpu, 0 free of 8; first in line": (
            "tests/explain/test_queued.py has the quota"
        ),
    },
    "docs/kubectl.md": {
        "4 replicas of serve refused by gpu-quota, next try in 40 s": (
            "tests/kubectl/test_workloads.py has the Deployment"
        ),
        "30 checks, 1 fault; 2 checks skipped, because faults explain their results": "no certificate here is that old",
        "28 of 30 checks can't see everything with your rights; 0 faults in the rest": (
            "the reader has all rights; tests/kubectl/test_doctor.py has a tenant"
        ),
    },
    "docs/room.md": {
        "Node n3 would have 4 x H100 free after 2 moves. This is only a plan: --apply carries it out.": (
            "tests/kubectl/test_defrag.py has nodes to move pods between"
        ),
        "run               started  never  wait mean  wait p95   cards  memory": (
            "tests/simulate/test_replay.py has such a day"
        ),
    },
    "docs/time.md": {
        "QUOTA     KEY                    SPENT   BUDGET  LEFT    HELD NOW  ENDS IN  LASTS": (
            "tests/kubectl/test_budget.py has a quota that is nearly spent"
        ),
    },
    "docs/used.md": {
        "NAMESPACE  IDLE PODS  OF  UNKNOWN  CARDS  WOULD FREE": (
            "no node is monitored; tests/e2e/test_used.py has such pods"
        ),
        "NAMESPACE  WORKLOAD          CONTAINER  PODS  MEASURED  MEMORY P95  MOST   OF      CORES P95  MOST  OF  "
        "LIMITS TO WRITE                               WOULD FREE": "tests/kubectl/test_advise.py has such a workload",
    },
}
"""By page, the first lines of outputs that are examples of what can't be had here, and why."""


def path_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def order(page: Path) -> tuple[bool, int, str]:
    path = path_of(page)
    return path != FIRST, LAST.index(path) + 1 if path in LAST else 0, path


PAGES = sorted([ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")], key=order)


def commands(page: Path) -> list[str]:
    return [
        line for block in blocks(page.read_text()) if block.language in ("sh", "console") for line in block.commands
    ]


def is_translation(page: Path) -> bool:
    """Whether it has the commands of another page, apart from comments: tests/packaging/test_website_pages.py."""
    return page.name.endswith(".zh.md")


WALKED = [page for page in PAGES if commands(page) and not is_translation(page) and path_of(page) not in STEPS]
