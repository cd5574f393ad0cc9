# The worker's image: agent, worker and tokenizer, rubatoctl for what lies on volumes, and the shared
# libraries that they load; and in /usr/lib/rubato/python the Python package, for pytorch.Dockerfile.
# No shell, no package manager, no root.
#
#   docker build -f deploy/worker.Dockerfile -t registry.example/rubato-worker:0.1.0 .
#
#   BASE      a Debian 12, to compile in and to take libraries from
#   PROGRAMS  compiled: from source | prebuilt: from the folder BIN of the build context
# For GPUs: worker-cuda.Dockerfile.
ARG BASE=docker.io/library/debian:bookworm-slim
ARG PROGRAMS=compiled

FROM ${BASE} AS compiled
WORKDIR /src
COPY scripts/ scripts/
RUN scripts/setup build && rm -rf /var/lib/apt/lists
COPY . .
RUN cmake --preset release && cmake --build build/release --target \
      rubato-operator rubato-agent rubato-worker rubato-script rubato-tokenize rubatoctl rubato_pytorch \
 && mkdir /programs && cp build/release/bin/rubato* /programs/ \
 && cmake --install build/release --component python --strip --prefix /rootfs/usr
RUN deploy/rootfs /rootfs /programs/rubato-agent /programs/rubato-worker /programs/rubato-script /programs/rubato-tokenize \
      /programs/rubatoctl

FROM ${BASE} AS prebuilt
RUN apt-get update && apt-get install -y --no-install-recommends \
      coinor-libclp1 libcpprest2.10 libdnnl2 libfmt9 libgomp1 libprometheus-cpp-core1.0 libprotobuf32 libre2-9 \
      libsimdjson14 libssl3 libyaml-cpp0.7 ocl-icd-libopencl1 zlib1g \
 && rm -rf /var/lib/apt/lists
ARG BIN=bin
COPY deploy/rootfs deploy/
COPY ${BIN}/rubato-agent ${BIN}/rubato-worker ${BIN}/rubato-script ${BIN}/rubato-tokenize ${BIN}/rubatoctl /programs/
COPY ${BIN}/lib/ /rootfs/usr/lib/
RUN deploy/rootfs /rootfs /programs/rubato-agent /programs/rubato-worker /programs/rubato-script /programs/rubato-tokenize \
      /programs/rubatoctl

FROM ${PROGRAMS} AS rootfs

FROM scratch
COPY --from=rootfs /rootfs/ /
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="rubato-worker" \
      org.opencontainers.image.description="Elastic training worker of Rubato, with its agent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/bin
USER 65532:65532
ENTRYPOINT ["/usr/bin/rubato-agent"]
