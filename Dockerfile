# The harness with the pinned versions, for machines with NVIDIA GPUs: `docker build -t sidco .`, see docs/ARTIFACT.md.
# torch's wheel brings CUDA; the host brings its driver. A tag, not a digest: nobody here could look the digest up.
FROM python:3.11.7-slim-bookworm

# gcc: Triton compiles its launchers when a kernel first runs; git: a row names its commit; iproute2: shaped links.
# Versions of these are not pinned: Debian drops one when it publishes the next, and a pinned build then fails.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc git iproute2 libc6-dev make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 sidco \
    && install --directory --owner sidco --group sidco /home/sidco/sidco /home/sidco/sidco/outputs

USER sidco
WORKDIR /home/sidco/sidco
ENV SIDCO_DATA=/data

# .git comes along: a row of unknown commit cannot be published
COPY --chown=sidco:sidco . .
RUN python -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir -c constraints.txt -e '.[app,dev]' \
    && touch .venv/.installed

CMD ["make", "help"]
