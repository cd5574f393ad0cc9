// What the Python package `rubato` calls, by ctypes: python/rubato/engine.py says how, and
// docs/pytorch.md what the requests are. Functions of C, so that one library serves every Python.
#include "common/json.h"
#include "common/version.h"
#include "worker/pytorch/torch_job.h"

namespace {

using rubato::worker::TorchJob;

thread_local std::string error_text;

struct Handle {
  std::unique_ptr<TorchJob> job;
  std::string request;
};

}  // namespace

extern "C" {

const char* rubato_version() {
  static const std::string kText = rubato::version_of("rubato");
  return kText.c_str();
}

// NULL: rubato_error() says why.
void* rubato_start(const char* options) {
  const auto parsed = rubato::json::parse(options);
  if (!parsed.ok()) {
    error_text = parsed.error().what();
    return nullptr;
  }
  const rubato::json::Value& training = (*parsed)["training"];
  auto job = TorchJob::start(training.is_null() ? "" : rubato::json::dump(training));
  if (!job.ok()) {
    error_text = job.error().what();
    return nullptr;
  }
  return new Handle{std::move(job).value(), ""};
}

const char* rubato_error() { return error_text.c_str(); }

// The next request; "": none came in time.
const char* rubato_next(void* handle, int timeout_ms) {
  auto& self = *static_cast<Handle*>(handle);
  self.request = self.job->next(std::chrono::milliseconds(timeout_ms)).value_or("");
  return self.request.c_str();
}

void rubato_reply(void* handle, const char* reply) {
  static_cast<Handle*>(handle)->job->reply(reply);
}

// `failure`: "", or why the script ends before the job does. The job's memory stays until the
// process ends, for the script's tensors lie in it, and it may use its model after the last step.
void rubato_stop(void* handle, const char* failure) {
  static_cast<Handle*>(handle)->job->stop(failure);
}

// The same once the process exits, for a script whose interpreter ends and that has not failed so
// far: a status other than 0 is a failure before this one.
void rubato_leave(void* handle, const char* failure) {
  static_cast<Handle*>(handle)->job->stop_at_exit(failure);
}

}  // extern "C"
