# Any image with PyTorch, or with whatever the command of a job of runtime torchrun or command needs,
# and in it Rubato's agent, and the package `rubato` for whatever Python (from 3.11 on) there is (docs/pytorch.md).
#
#   docker build -f deploy/pytorch.Dockerfile --build-arg BASE=your/pytorch:tag -t registry.example/my-training:1 .
#
#   BASE    an x86-64 image with /bin/sh
#   WORKER  the image of worker.Dockerfile
ARG BASE
ARG WORKER=registry.example/rubato-worker:0.1.0

FROM ${WORKER} AS rubato

FROM ${BASE}
COPY --from=rubato /usr/ /opt/rubato/usr/
COPY deploy/beside /usr/local/bin/rubato-agent
COPY deploy/beside /usr/local/bin/rubato-script
# Last: what the image has of its own comes first.
ENV PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}/opt/rubato/usr/lib/rubato/python
