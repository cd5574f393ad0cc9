# The operator's image: one program and the shared libraries that it loads. No shell, no package
# manager, no root.
#
#   docker build -f deploy/operator.Dockerfile -t registry.example/rubato-operator:0.1.0 .
#
# compiles from source. deploy/build makes the same image from programs that are built already,
# without Docker and without pulling anything.
#
#   BASE      a Debian 12, to compile in and to take libraries from
#   PROGRAMS  compiled: from source | prebuilt: from the folder BIN of the build context
ARG BASE=docker.io/library/debian:bookworm-slim
ARG PROGRAMS=compiled

FROM ${BASE} AS compiled
WORKDIR /src
COPY scripts/ scripts/
RUN scripts/setup build && rm -rf /var/lib/apt/lists
COPY . .
RUN cmake --preset release && cmake --build build/release --target \
      rubato-operator rubato-agent rubato-worker rubato-tokenize \
 && mkdir /programs && cp build/release/bin/rubato-* /programs/
RUN deploy/rootfs /rootfs /programs/rubato-operator

FROM ${BASE} AS prebuilt
RUN apt-get update && apt-get install -y --no-install-recommends \
      coinor-libclp1 libcpprest2.10 libfmt9 libprometheus-cpp-core1.0 libprotobuf32 libsimdjson14 libssl3 \
      libyaml-cpp0.7 zlib1g \
 && rm -rf /var/lib/apt/lists
ARG BIN=bin
COPY deploy/rootfs deploy/
COPY ${BIN}/rubato-operator /programs/
RUN deploy/rootfs /rootfs /programs/rubato-operator

FROM ${PROGRAMS} AS rootfs

FROM scratch
COPY --from=rootfs /rootfs/ /
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="rubato-operator" \
      org.opencontainers.image.description="Kubernetes operator and scheduler for elastic training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/bin
USER 65532:65532
EXPOSE 7443 8080
ENTRYPOINT ["/usr/bin/rubato-operator"]
