# docker build -t debate .
# With CUDA and vLLM:
#   docker build -t debate-cuda --build-arg BASE=nvidia/cuda:12.9.1-devel-ubuntu24.04 \
#     --build-arg TORCH=auto --build-arg EXTRAS='packages/debate-rollout[vllm]' .
# docker run --rm -v "$PWD/runs:/debate/runs" debate debate-train quickstart --output runs/first
ARG BASE=debian:bookworm-slim
FROM $BASE
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        build-essential ca-certificates make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /debate
COPY . .
ARG TORCH=cpu
ARG EXTRAS=
ENV UV_TORCH_BACKEND=$TORCH PATH=/debate/.venv/bin:/debate/.uv/bin:$PATH
RUN make setup \
    && if [ -n "$EXTRAS" ]; then uv pip install --python .venv/bin/python -e "$EXTRAS"; fi \
    && rm -rf ~/.cache
CMD ["debate-train", "recipes"]
