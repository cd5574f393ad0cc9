#include "worker/backend/cuda/cuda_device.h"

#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/matmul.h"
#include "worker/backend/cuda/nccl.h"
#include "worker/backend/cuda/runtime.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <string_view>
#include <utility>

namespace rubato::worker::cuda {

namespace {

// Raised when our own kernels change bits; cuBLAS and the GPU speak for themselves.
constexpr int kKernelsVersion = 1;
constexpr int kOldestMajor = 8;  // compute capability

class CudaEvent : public Event {
 public:
  CudaEvent(int ordinal, cudaEvent_t raw) : ordinal_(ordinal), raw_(raw) {}
  ~CudaEvent() override { (void)cudaEventDestroy(raw_); }

  void record(Stream& stream) override {
    auto& its = static_cast<CudaStream&>(stream);
    its.note(cudaEventRecord(raw_, its.enter()), "recording an event");
    stream_ = &its;
  }
  void hold(Stream& stream) override {
    auto& its = static_cast<CudaStream&>(stream);
    its.note(cudaStreamWaitEvent(its.enter(), raw_, 0), "waiting for an event");
  }
  // An error ends the waiting, too: wait() tells it.
  bool is_done() const override {
    if (cudaEventQuery(raw_) != cudaErrorNotReady) return true;
    (void)cudaGetLastError();  // the answer is kept as an error, which the next launch would tell
    return false;
  }
  Status wait() override {
    TRY_OK(to_status(cudaSetDevice(ordinal_), "cudaSetDevice"));
    TRY_OK(to_status(cudaEventSynchronize(raw_), "waiting for an event"));
    if (stream_ != nullptr && stream_->error()) return *stream_->error();
    return ok();
  }

 private:
  int ordinal_;
  cudaEvent_t raw_;
  CudaStream* stream_ = nullptr;  // of the last record(): it outlives the wait
};

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, const cudaDeviceProp& about, Precision precision,
             std::unique_ptr<Matmul> matmul)
      : ordinal_(ordinal),
        about_(about),
        precision_(precision),
        matmul_(std::move(matmul)),
        kernels_(*matmul_, static_cast<std::int64_t>(about.sharedMemPerBlockOptin), precision) {}

  std::string name() const override { return "cuda:" + std::to_string(ordinal_); }
  std::string fingerprint() const override;
  Result<MemoryLimit> memory() const override;
  Result<Arena> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event() override;
  Kernels& kernels() override { return kernels_; }
  Result<DeviceCollectives*> collectives() override {
    const std::lock_guard lock(mutex_);
    if (nccl_ == nullptr) {
      TRY(nccl_, open_nccl(ordinal_));
    }
    return nccl_.get();
  }

  void copy_to_device(Stream& stream, Buffer to, const void* from) override {
    copy_bytes(stream, to.address(), from, to.bytes(), cudaMemcpyHostToDevice);
  }
  void copy_to_host(Stream& stream, void* to, ConstBuffer from) override {
    copy_bytes(stream, to, from.address(), from.bytes(), cudaMemcpyDeviceToHost);
  }
  void copy(Stream& stream, Buffer to, ConstBuffer from) override {
    CHECK_EQ(to.bytes(), from.bytes());
    copy_bytes(stream, to.address(), from.address(), to.bytes(), cudaMemcpyDeviceToDevice);
  }
  void memset(Stream& stream, Buffer to, std::uint8_t byte) override {
    auto& its = static_cast<CudaStream&>(stream);
    if (!to.is_empty())
      its.note(cudaMemsetAsync(to.address(), byte, to.bytes(), its.enter()), "cudaMemsetAsync");
  }
  void* host_view(Buffer) override { return nullptr; }
  const void* host_view(ConstBuffer) override { return nullptr; }

 protected:
  void release(void* base, std::size_t) override {
    (void)cudaSetDevice(ordinal_);
    (void)cudaFree(base);
  }

 private:
  static void copy_bytes(Stream& stream, void* to, const void* from, std::size_t bytes,
                         cudaMemcpyKind kind) {
    auto& its = static_cast<CudaStream&>(stream);
    if (bytes != 0) its.note(cudaMemcpyAsync(to, from, bytes, kind, its.enter()), "copying");
  }

  int ordinal_;
  cudaDeviceProp about_;
  Precision precision_;
  std::unique_ptr<Matmul> matmul_;
  CudaKernels kernels_;
  std::mutex mutex_;
  std::unique_ptr<DeviceCollectives> nccl_;
};

// Words and numbers only, as it becomes a part of the job's record.
std::string CudaDevice::fingerprint() const {
  std::string gpu = about_.name;
  std::ranges::replace(gpu, ' ', '-');
  std::ranges::replace(gpu, '/', '-');
  return "cuda/" + gpu + "/sm_" + std::to_string(about_.major) + std::to_string(about_.minor) +
         "/" + std::to_string(about_.multiProcessorCount) + "-sms/" + matmul_->version() +
         (precision_ == Precision::kBf16 ? "/bf16" : "") + "/kernels-" +
         std::to_string(kKernelsVersion);
}

Result<MemoryLimit> CudaDevice::memory() const {
  const std::string doing = "the free memory of " + name();
  TRY_OK(to_status(cudaSetDevice(ordinal_), doing));
  std::size_t free = 0, total = 0;
  TRY_OK(to_status(cudaMemGetInfo(&free, &total), doing));
  return MemoryLimit{free, "free on " + name()};
}

Result<Arena> CudaDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Arena();
  const std::string doing = std::to_string(bytes) + " bytes of GPU memory";
  TRY_OK(to_status(cudaSetDevice(ordinal_), doing));
  void* base = nullptr;
  if (const cudaError_t error = cudaMalloc(&base, bytes); error != cudaSuccess) {
    (void)cudaGetLastError();  // it does not stick
    return to_error(error, doing);
  }
  Arena arena(*this, base, bytes);
  TRY_OK(to_status(cudaMemset(base, 0, bytes), doing));
  TRY_OK(to_status(cudaDeviceSynchronize(), doing));
  return arena;
}

std::unique_ptr<Stream> CudaDevice::make_stream() {
  cudaStream_t raw = nullptr;
  (void)cudaSetDevice(ordinal_);
  const cudaError_t error = cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking);
  auto stream = std::make_unique<CudaStream>(ordinal_, raw);
  stream->note(error, "making a stream");
  return stream;
}

std::unique_ptr<Event> CudaDevice::make_event() {
  cudaEvent_t raw = nullptr;
  (void)cudaSetDevice(ordinal_);
  (void)cudaEventCreateWithFlags(&raw, cudaEventDisableTiming);
  return std::make_unique<CudaEvent>(ordinal_, raw);
}

Result<int> ordinal_of(std::string_view kind) {
  constexpr std::string_view kKind = "cuda";
  if (kind == kKind) return 0;
  int ordinal = -1;
  if (kind.starts_with("cuda:")) {
    const std::string_view digits = kind.substr(kKind.size() + 1);
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), ordinal);
    if (error == std::errc() && end == digits.end() && ordinal >= 0) return ordinal;
  }
  return Error(Code::kInvalid, "device '" + std::string(kind) + "': cuda or cuda:N");
}

}  // namespace

Result<std::unique_ptr<Device>> open_cuda_device(const DeviceSpec& spec) {
  TRY(const int ordinal, ordinal_of(spec.kind));
  const std::string opening = "opening " + spec.kind;
  int count = 0;
  TRY_OK(to_status(cudaGetDeviceCount(&count), opening));
  if (ordinal >= count)
    return Error(Code::kNotFound, opening + ": this process sees " + std::to_string(count) +
                                      " GPUs, counted from 0");
  TRY_OK(to_status(cudaSetDevice(ordinal), opening));
  cudaDeviceProp about;
  TRY_OK(to_status(cudaGetDeviceProperties(&about, ordinal), opening));
  if (about.major < kOldestMajor)
    return Error(Code::kInvalid, opening + ": " + about.name + " has compute capability " +
                                     std::to_string(about.major) + "." +
                                     std::to_string(about.minor) + "; 8.0 is the least");
  auto matmul = Matmul::open(spec.precision);
  if (!matmul.ok()) return matmul.error().in(opening);
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(ordinal, about, spec.precision, std::move(matmul).value()));
}

}  // namespace rubato::worker::cuda
