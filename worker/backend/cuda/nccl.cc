#include "worker/backend/cuda/nccl.h"

#include "common/check.h"
#include "common/log.h"
#include "worker/backend/cuda/dynamic_library.h"
#include "worker/backend/cuda/runtime.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

#include <nccl.h>

namespace rubato::worker::cuda {

namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr auto kPause = 50us;        // between two questions to a GPU that adds
constexpr auto kLeaveLimit = 1min;   // for one that nobody waits for
constexpr auto kConnectPause = 2ms;  // … to a library that connects

// The functions of the library that we use.
struct Library {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetUniqueId) make_id = nullptr;
  decltype(&ncclCommInitRankConfig) connect = nullptr;
  decltype(&ncclCommGetAsyncError) ask = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) text_of = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;

  Error error(ncclResult_t result, const std::string& doing) const {
    return Error(Code::kUnavailable, doing + ": NCCL: " + text_of(result) + " (" +
                                         std::to_string(static_cast<int>(result)) + "); " +
                                         last_error(nullptr));
  }
};

Result<Library> load_library() {
  TRY(DynamicLibrary file, DynamicLibrary::open(kLibrary, "NCCL"));
  Library library;
  file.find(library.version, "ncclGetVersion");
  file.find(library.make_id, "ncclGetUniqueId");
  file.find(library.connect, "ncclCommInitRankConfig");
  file.find(library.ask, "ncclCommGetAsyncError");
  file.find(library.all_reduce, "ncclAllReduce");
  file.find(library.abort, "ncclCommAbort");
  file.find(library.text_of, "ncclGetErrorString");
  file.find(library.last_error, "ncclGetLastError");
  TRY_OK(file.has_all());
  return library;
}

// Nothing is known any more of what a GPU reads and writes.
[[noreturn]] void end_stuck(const char* what) {
  LOG_ERROR("nccl", "NCCL {}: this process ends with status {}, to be started anew", what,
            kStuckStatus);
  std::_Exit(kStuckStatus);
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// One communicator of NCCL and the thread that gives it up. `mutex` is held during every call with
// it, so that none meets one that is gone; only the thread that gives up waits for it.
class Communicator {
 public:
  Communicator(const Library& library, Executor& executor, int ordinal)
      : library_(library),
        executor_(executor),
        ordinal_(ordinal),
        changed_(executor.make_condition()),
        aborting_(executor.spawn("nccl-abort", [this](const std::stop_token&) { give_up(); })) {}
  ~Communicator() {
    abort(kLeaveLimit);
    aborting_.join();
  }
  Communicator(const Communicator&) = delete;

  // Begins to connect.
  Status open(const ReducerPlace& place);
  // Of what was last begun: kOk; kTimeout: it is not done yet; kUnavailable; kCancelled.
  Status ask(const char* doing);
  Status begin_sum(const void* in, void* out, std::size_t count, cudaStream_t stream);

  // The library is to let go of everything within `limit`, or this process ends.
  void abort(Duration limit) {
    const std::lock_guard lock(state_mutex_);
    if (!is_aborted_) limit_ = limit;
    is_aborted_ = true;
    changed_->notify_all();
  }
  // After abort(), until it has.
  void wait_until_gone();

 private:
  void give_up();

  const Library& library_;
  Executor& executor_;
  const int ordinal_;
  std::mutex mutex_;
  ncclComm_t raw_ = nullptr;
  std::mutex state_mutex_;  // of what follows
  const std::unique_ptr<Condition> changed_;
  std::atomic<bool> is_aborted_ = false;
  Duration limit_{};
  bool is_gone_ = false;
  Task aborting_;  // last: it uses the others
};

constexpr const char* kAdding = "adding";
bool is_open(const Status& said) { return !said.ok() && said.error().code() == Code::kTimeout; }

Error aborted() { return Error(Code::kCancelled, "communicator was aborted"); }

Status Communicator::open(const ReducerPlace& place) {
  ncclUniqueId id;
  if (place.id.size() != sizeof id)
    return Error(Code::kInternal, "an id for NCCL of " + std::to_string(place.id.size()) +
                                      " bytes instead of " + std::to_string(sizeof id));
  std::memcpy(&id, place.id.data(), sizeof id);
  TRY_OK(to_status(cudaSetDevice(ordinal_), "cudaSetDevice"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const std::lock_guard lock(mutex_);
  const ncclResult_t begun = library_.connect(&raw_, static_cast<int>(place.size), id,
                                              static_cast<int>(place.rank), &config);
  if (begun != ncclSuccess && begun != ncclInProgress) return library_.error(begun, "connecting");
  return ok();
}

void Communicator::give_up() {
  {
    std::unique_lock lock(state_mutex_);
    while (!is_aborted_) changed_->wait_until(lock, executor_.now() + 1h);
  }
  Task watching =
      executor_.spawn("nccl-watch", [this](const std::stop_token&) { wait_until_gone(); });
  {
    const std::lock_guard lock(mutex_);
    (void)cudaSetDevice(ordinal_);
    if (raw_ != nullptr) (void)library_.abort(raw_);
  }
  const std::lock_guard lock(state_mutex_);
  is_gone_ = true;
  changed_->notify_all();
}

void Communicator::wait_until_gone() {
  std::unique_lock lock(state_mutex_);
  const MonoTime deadline = executor_.now() + limit_;
  if (!changed_->wait_until(lock, deadline, [&] { return is_gone_; }))
    end_stuck("does not come back from an abort");
}

Status Communicator::ask(const char* doing) {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) return aborted();
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t asked = library_.ask(raw_, &state); asked != ncclSuccess)
    return library_.error(asked, doing);
  if (state == ncclInProgress) return Error(Code::kTimeout, "not done yet");
  if (state != ncclSuccess) return library_.error(state, doing);
  return ok();
}

Status Communicator::begin_sum(const void* in, void* out, std::size_t count, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) return aborted();
  // Modulo 2^32, which NCCL promises of unsigned integers alone.
  const ncclResult_t begun = library_.all_reduce(in, out, count, ncclUint32, ncclSum, raw_, stream);
  if (begun != ncclSuccess && begun != ncclInProgress) return library_.error(begun, "adding");
  return ok();
}

// Communicators that nobody uses any more, until NCCL has taken them back: nobody waits for that.
class Leaving {
 public:
  void add(Executor& executor, std::shared_ptr<Communicator> communicator) {
    const std::lock_guard lock(mutex_);
    std::erase_if(tasks_, [](const Task& task) { return task.done(); });
    communicator->abort(kLeaveLimit);
    tasks_.push_back(executor.spawn(
        "nccl-leave",
        [it = std::move(communicator)](const std::stop_token&) mutable { it.reset(); }));
  }

 private:
  std::mutex mutex_;
  std::list<Task> tasks_;  // each ends within kLeaveLimit
};

class NcclReducer : public DeviceReducer {
 public:
  NcclReducer(Executor& executor, std::shared_ptr<Communicator> communicator, Leaving& leaving)
      : executor_(executor), communicator_(std::move(communicator)), leaving_(leaving) {}
  ~NcclReducer() override {
    leaving_.add(executor_, std::move(communicator_));
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Status all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out) override;
  void abort() override { communicator_->abort(kAbortLimit); }

 private:
  // Until the GPU has done what is enqueued, or `ask` says that it won't.
  template <class Ask>
  Status wait_for_gpu(CudaStream& stream, cudaStream_t raw, Ask ask);

  Executor& executor_;
  std::shared_ptr<Communicator> communicator_;
  Leaving& leaving_;
  cudaEvent_t event_ = nullptr;
};

template <class Ask>
Status NcclReducer::wait_for_gpu(CudaStream& stream, cudaStream_t raw, Ask ask) {
  stream.note(cudaEventRecord(event_, raw), "recording an event");
  if (stream.error()) return *stream.error();
  cudaError_t state = cudaSuccess;
  while ((state = cudaEventQuery(event_)) == cudaErrorNotReady) {
    (void)cudaGetLastError();
    const Status said = ask();
    if (!said.ok() && !is_open(said)) return said;
    (void)executor_.sleep_for(kPause);
  }
  return to_status(state, "adding on a GPU");
}

// First until the library has enqueued it, then until the GPU has done it.
Status NcclReducer::all_reduce_int32(Stream& stream, ConstBuffer in, Buffer out) {
  CHECK_EQ(in.count(), out.count());
  CHECK(in.type() == DType::kI32 && out.type() == DType::kI32);
  auto& its = static_cast<CudaStream&>(stream);
  const cudaStream_t raw = its.enter();
  if (event_ == nullptr) {
    TRY_OK(to_status(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"));
  }
  TRY_OK(communicator_->begin_sum(in.address(), out.address(), static_cast<std::size_t>(in.count()),
                                  raw));
  Status said = communicator_->ask(kAdding);
  for (; is_open(said); said = communicator_->ask(kAdding)) (void)executor_.sleep_for(kPause);
  if (said.ok()) said = wait_for_gpu(its, raw, [this] { return communicator_->ask(kAdding); });
  if (said.ok()) return its.synchronize();
  // The buffers are in use until NCCL lets go of them.
  communicator_->abort(kAbortLimit);
  communicator_->wait_until_gone();
  const MonoTime deadline = executor_.now() + kAbortLimit;
  (void)wait_for_gpu(its, raw, [&]() -> Status {
    if (executor_.now() >= deadline) end_stuck("still adds after an abort");
    return ok();
  });
  return said;
}

class Nccl : public DeviceCollectives {
 public:
  Nccl(Library library, std::string name, int ordinal)
      : library_(library), name_(std::move(name)), ordinal_(ordinal) {}
  std::string name() const override { return name_; }
  Result<std::string> make_id() override;
  Result<std::unique_ptr<DeviceReducer>> connect(Executor& executor, const ReducerPlace& place,
                                                 MonoTime deadline, std::stop_token stop) override;

 private:
  const Library library_;
  const std::string name_;
  const int ordinal_;
  Leaving leaving_;
};

Result<std::string> Nccl::make_id() {
  ncclUniqueId id;
  if (const ncclResult_t made = library_.make_id(&id); made != ncclSuccess)
    return library_.error(made, "making an id");
  std::string bytes(sizeof id, '\0');
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

Result<std::unique_ptr<DeviceReducer>> Nccl::connect(Executor& executor, const ReducerPlace& place,
                                                     MonoTime deadline, std::stop_token stop) {
  auto communicator = std::make_shared<Communicator>(library_, executor, ordinal_);
  Status connected = communicator->open(place);
  while (connected.ok()) {
    connected = communicator->ask("connecting");
    if (connected.ok())
      return std::unique_ptr<DeviceReducer>(
          std::make_unique<NcclReducer>(executor, std::move(communicator), leaving_));
    if (!is_open(connected)) break;
    if (stop.stop_requested()) {
      connected = aborted();
    } else if (executor.now() >= deadline) {
      connected = Error(Code::kTimeout, "NCCL has not connected all members in time");
    } else {
      (void)executor.sleep_for(kConnectPause, stop);
      connected = ok();
    }
  }
  leaving_.add(executor, std::move(communicator));
  return connected.error();
}

}  // namespace

Result<std::unique_ptr<DeviceCollectives>> open_nccl(int ordinal) {
  TRY(const Library library, load_library());
  int version = 0;
  if (const ncclResult_t told = library.version(&version); told != ncclSuccess)
    return library.error(told, "its version");
  if (version < NCCL_VERSION_CODE)
    return Error(Code::kInvalid, "NCCL " + version_text(version) + " is on this machine, " +
                                     version_text(NCCL_VERSION_CODE) + " is the least");
  return std::unique_ptr<DeviceCollectives>(
      std::make_unique<Nccl>(library, "nccl-" + version_text(version), ordinal));
}

}  // namespace rubato::worker::cuda
