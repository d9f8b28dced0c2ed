# One target per kind of process: ingress, router, tokenize, engine (prefill and decode). Only `engine` holds PyTorch.
#
#   docker build --target engine --tag headrace-engine .
#
# PyPI's PyTorch for x86-64 carries CUDA. For a CPU-only image pass an index that offers CPU wheels:
#   docker build --target engine --build-arg PIP_EXTRA_INDEX_URL=… .

ARG PYTHON_VERSION=3.11.14

FROM python:${PYTHON_VERSION}-slim-bookworm AS base
# services/tokenize has the name of a standard module: the current folder must never enter sys.path.
ENV PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    XDG_CACHE_HOME=/tmp
# The models folder is made here so that a fresh volume mounted over it belongs to the user.
RUN useradd --system --uid 10001 --no-create-home headrace \
    && install --directory --owner=headrace /models
COPY deploy/healthcheck.py /usr/local/lib/headrace/
WORKDIR /models

FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY services services
COPY shared shared
RUN --mount=type=cache,target=/var/.cache/pip \
    pip wheel --cache-dir /var/.cache/pip --no-deps --wheel-dir /dist .

FROM base AS ingress
RUN --mount=type=cache,target=/var/.cache/pip \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --cache-dir /var/.cache/pip "$(echo /dist/*.whl)[ingress]"
USER 10001
ENTRYPOINT ["headrace"]
CMD ["ingress"]

FROM base AS router
RUN --mount=type=cache,target=/var/.cache/pip \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --cache-dir /var/.cache/pip "$(echo /dist/*.whl)[cache]"
USER 10001
ENTRYPOINT ["headrace"]
CMD ["router"]

FROM base AS tokenize
RUN --mount=type=cache,target=/var/.cache/pip \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --cache-dir /var/.cache/pip "$(echo /dist/*.whl)[text]"
USER 10001
ENTRYPOINT ["headrace"]
CMD ["tokenize"]

# ziglang compiles the kernels for the processor the container meets.
FROM base AS engine
ARG PIP_EXTRA_INDEX_URL=
RUN --mount=type=cache,target=/var/.cache/pip \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --cache-dir /var/.cache/pip "$(echo /dist/*.whl)[text,cache,engine]" ziglang==0.17.1
USER 10001
ENTRYPOINT ["headrace"]
CMD ["decode"]
