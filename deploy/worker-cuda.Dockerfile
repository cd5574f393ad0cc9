# The worker's image for NVIDIA GPUs: what worker.Dockerfile has, compiled with the CUDA backend, and
# cuBLASLt beside it. The driver is the node's: the container runtime brings it into the pod.
#
#   docker build -f deploy/worker-cuda.Dockerfile -t registry.example/rubato-worker-cuda:0.1.0 .
#
#   BASE       a Debian 12, to compile in and to take libraries from
#   PROGRAMS   compiled: from source | prebuilt: from the folder BIN of the build context
#   LIBRARIES  where cuBLASLt is taken from: the wheel that `scripts/setup cuda` brings, pinned by its
#              hash (compiled | wheel: from the folder cuda of the build context), or an image of
#              NVIDIA's; then
#   CUBLAS     is the library's path there. For example
#                --build-arg LIBRARIES=docker.io/nvidia/cuda:13.0.2-runtime-ubuntu24.04
#                --build-arg CUBLAS=/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcublasLt.so.13
ARG BASE=docker.io/library/debian:bookworm-slim
ARG PROGRAMS=compiled
ARG LIBRARIES=compiled
# What of the C library cuBLASLt and the driver load, and our programs do not.
ARG LOADED="libdl.so.2 libpthread.so.0 librt.so.1"

FROM ${BASE} AS compiled
ARG LOADED
WORKDIR /src
COPY scripts/ scripts/
COPY tests/tools/cuda/ tests/tools/cuda/
RUN scripts/setup cuda && rm -rf /var/lib/apt/lists
COPY . .
RUN cmake --preset release && cmake --build build/release --target \
      rubato-agent rubato-worker rubato-script rubato-tokenize rubatoctl rubato_pytorch \
 && mkdir /programs && cp build/release/bin/rubato* /programs/ \
 && cmake --install build/release --component python --strip --prefix /rootfs/usr
RUN deploy/rootfs /rootfs /programs/rubato-agent /programs/rubato-worker /programs/rubato-script /programs/rubato-tokenize \
      /programs/rubatoctl ${LOADED}
RUN scripts/build-cuda --copy-libraries /cuda

FROM ${BASE} AS prebuilt
RUN apt-get update && apt-get install -y --no-install-recommends \
      coinor-libclp1 libcpprest2.10 libdnnl2 libfmt9 libgomp1 libprometheus-cpp-core1.0 libprotobuf32 libre2-9 \
      libsimdjson14 libssl3 libyaml-cpp0.7 ocl-icd-libopencl1 zlib1g \
 && rm -rf /var/lib/apt/lists
ARG BIN=bin
ARG LOADED
COPY deploy/rootfs deploy/
COPY ${BIN}/rubato-agent ${BIN}/rubato-worker ${BIN}/rubato-script ${BIN}/rubato-tokenize ${BIN}/rubatoctl /programs/
COPY ${BIN}/lib/ /rootfs/usr/lib/
RUN deploy/rootfs /rootfs /programs/rubato-agent /programs/rubato-worker /programs/rubato-script /programs/rubato-tokenize \
      /programs/rubatoctl ${LOADED}

FROM scratch AS wheel
COPY cuda/ /cuda/

FROM ${PROGRAMS} AS rootfs

FROM ${LIBRARIES} AS libraries

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="rubato-worker-cuda" \
      org.opencontainers.image.description="Elastic training worker of Rubato for NVIDIA GPUs, with its agent" \
      org.opencontainers.image.licenses="Apache-2.0 AND LicenseRef-NVIDIA-CUDA" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# Folders in which container runtimes lay the driver where the loader of this image does not look by
# itself; and what of the driver they shall bring.
ENV PATH=/usr/bin \
    RUBATO_DEVICE=cuda \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/lib64 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["/usr/bin/rubato-agent"]
# At last: buildah copies all that is there before each instruction.
ARG CUBLAS=/cuda/
COPY --from=libraries ${CUBLAS} /usr/lib/x86_64-linux-gnu/
COPY --from=rootfs /rootfs/ /
