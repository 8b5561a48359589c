# fedfrontier and its command, for machines without Python:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=INDEX -t fedfrontier .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" fedfrontier suite quickstart --out results
# INDEX is the CPU index named on the torch project's installation page; without it the CUDA build is installed.
FROM python:3.11-slim

ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
# torch first, in a layer of its own: it is large and changes rarely.
COPY constraints.txt ./
RUN pip install --constraint constraints.txt torch==2.13.0
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY algorithms algorithms
COPY compression compression
COPY datasets datasets
COPY harness harness
COPY privacy privacy
RUN pip install --constraint constraints.txt '.[excel,export,tff,tune]'

# Any user may write caches; results lie in the folder that is mounted.
ENV HOME=/home/fedfrontier
RUN install --directory --mode 1777 "$HOME"
WORKDIR /work
ENTRYPOINT ["fedfrontier"]
