# syntax=docker/dockerfile:1
# The webhook, controller, extender and node probe, with the packages of requirements/, by their hashes. For the same bytes again:
#   docker build $(PYTHON_DIGEST=sha256:… hack/image arguments) --output type=image,rewrite-timestamp=true .
# Of the base image the tag, which may name its content: 3.14-slim-trixie@sha256:…
ARG PYTHON=3.14-slim-trixie

FROM python:${PYTHON} AS build
ARG SOURCE_DATE_EPOCH=0
ARG REVISION=
# The extra of pyproject.toml, which is a file in requirements/. One image serves every pod of the manifests and the chart,
# so it has `node`; EXTRAS=all has the tables and pages of the command line, too.
ARG EXTRAS=node
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY requirements ./requirements
COPY hami_webhook ./hami_webhook
RUN python -m venv /build \
 && /build/bin/python -m pip install --no-deps --require-hashes --only-binary :all: -r requirements/build.txt \
 && /build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/hami-webhook \
 && python -m pip --python /opt/hami-webhook/bin/python install --no-compile --no-deps \
      --require-hashes --only-binary :all: -r "requirements/$EXTRAS.txt" \
 && python -m pip --python /opt/hami-webhook/bin/python install --no-compile --no-deps /wheels/*.whl

# The image as root, for HAMi's own chart: there the program listens on port 443.
#   docker build --target root -t REGISTRY/hami-webhook-root:TAG .
FROM python:${PYTHON} AS root
LABEL org.opencontainers.image.title="hami-webhook" \
      org.opencontainers.image.description="Admission webhook and quota controller for shared accelerators" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/hami-webhook /opt/hami-webhook
ENV PATH=/opt/hami-webhook/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
EXPOSE 8443 9395
ENTRYPOINT ["hami-webhook"]
CMD ["serve"]

FROM root
USER 65532:65532
