#include "apiserver/memory/journal.h"

#include "common/log.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::kube {
namespace {

using json::Value;

Error failed(const std::string& what, const std::string& path) {
  return Error(Code::kInternal, what + " " + path + ": " + std::strerror(errno));
}

std::string header(std::uint64_t version) {
  return json::dump(
             Value::object({{"journal", "rubato"}, {"version", 1}, {"resourceVersion", version}})) +
         "\n";
}

std::string line(const StoreId& id, std::uint64_t version, const Value* object) {
  Value entry = Value::object({{"kind", id.kind}, {"key", id.key}, {"v", version}});
  if (object != nullptr) entry.set("object", *object);
  return json::dump(entry) + "\n";
}

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("writing", path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return ok();
}

struct Saved {
  std::map<StoreId, Value> objects;
  std::uint64_t version = 0;
  std::size_t lines = 0;
  std::size_t bytes = 0;
  std::size_t good_bytes = 0;  // what follows is a torn line
};

// Empty when there is no file. Every byte that there is, or an error.
Result<std::string> whole_file(FileSystem& files, const std::string& path) {
  const auto file = files.open(path, OpenMode::kRead);
  if (!file.ok() && file.error().code() == Code::kNotFound) return std::string();
  if (!file.ok()) return file.error();
  TRY(const std::uint64_t size, (*file)->size());
  std::string text(size, '\0');
  TRY(const std::size_t got, (*file)->read_at(0, std::as_writable_bytes(std::span(text))));
  if (got == size) return text;
  return Error(Code::kUnavailable, "reading " + path + ": it has " + std::to_string(size) +
                                       " bytes, and " + std::to_string(got) + " came");
}

Result<Saved> read_saved(FileSystem& files, const std::string& path) {
  Saved saved;
  TRY(const std::string text, whole_file(files, path));
  saved.bytes = text.size();
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // torn
    const auto entry = json::parse(std::string_view(text).substr(at, end - at));
    if (!entry.ok() || !entry->is_object()) {
      if (end + 1 == text.size()) break;  // torn, with a newline by chance
      return Error(Code::kInvalid,
                   path + " line " + std::to_string(saved.lines + 1) + " cannot be read");
    }
    const Value& value = *entry;
    if (saved.lines == 0 && value["journal"].string_view_or("") != "rubato")
      return Error(Code::kInvalid, path + " is not a journal of rubato-apiserver");
    const StoreId id{value["kind"].string_or(""), value["key"].string_or("")};
    saved.version =
        static_cast<std::uint64_t>(value[saved.lines == 0 ? "resourceVersion" : "v"].int_or(0));
    if (saved.lines > 0) {
      if (const Value* object = value.find("object"))
        saved.objects.insert_or_assign(id, *object);
      else
        saved.objects.erase(id);
    }
    ++saved.lines;
    at = end + 1;
    saved.good_bytes = at;
  }
  return saved;
}

}  // namespace

// Used under the server's mutex, except by flush().
struct Journal::File {
  std::string path;
  Clock* clock = nullptr;
  mutable std::mutex mutex;
  PosixFileSystem disk;
  int fd = -1;
  std::size_t lines = 0;
  MonoTime synced{};
  std::optional<MonoTime> compact_at;  // the last rewrite failed
  std::set<StoreId> present;           // what the next compaction would keep
  std::optional<Error> failure;

  ~File() {
    if (fd < 0) return;
    ::fdatasync(fd);
    ::close(fd);
  }

  Status append(const StoreId& id, std::uint64_t version, const Value* object) {
    const std::lock_guard lock(mutex);
    if (failure) return *failure;
    if (object != nullptr)
      present.insert(id);
    else
      present.erase(id);
    TRY_OK(remember(write_all(fd, line(id, version, object), path)));
    ++lines;
    if (clock->now() - synced < kSyncPeriod) return ok();
    return sync();
  }

  // Under the mutex, as remember().
  Status sync() {
    synced = clock->now();
    return remember(::fdatasync(fd) == 0 ? ok() : Status(failed("syncing", path)));
  }
  Status remember(Status done) {
    if (!done.ok() && !failure) failure = done.error();
    return done;
  }

  bool wants_compaction() const {
    const std::lock_guard lock(mutex);
    return !failure && lines > kCompactMinLines && lines > kCompactFactor * (present.size() + 1) &&
           (!compact_at || clock->now() >= *compact_at);
  }

  // Writes the whole state beside the file and takes its place, or leaves all as it was.
  void compact(const ObjectStore& store) {
    const std::lock_guard lock(mutex);
    const std::string fresh = path + ".new";
    const int out = ::open(fresh.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    std::size_t count = 0;
    Status done =
        out < 0 ? Status(failed("creating", fresh)) : write_state(store, out, fresh, count);
    if (done.ok() && (::fsync(out) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0))
      done = failed("replacing", path);
    if (!done.ok()) {
      if (out >= 0) ::close(out);
      ::unlink(fresh.c_str());
      compact_at = clock->now() + kCompactRetry;
      LOG_WARNING("journal", "not made smaller, tried again in {} s: {}",
                  std::chrono::duration_cast<std::chrono::seconds>(kCompactRetry).count(),
                  done.error().what());
      return;
    }
    ::close(fd);
    fd = out;
    lines = count;
    compact_at.reset();
    (void)remember(disk.sync_directory(parent_of(path)));  // else a power cut brings the old one
  }

 private:
  static Status write_state(const ObjectStore& store, int out, const std::string& fresh,
                            std::size_t& count) {
    TRY_OK(write_all(out, header(store.version()), fresh));
    count = 1;
    for (const std::string& kind : store.kinds())
      for (const auto& [key, object] : store.objects(kind)) {
        TRY_OK(write_all(out, line({kind, key}, store.version(), &object), fresh));
        ++count;
      }
    return ok();
  }
};

Result<std::unique_ptr<Journal>> Journal::attach(MemoryServer& server, const std::string& path) {
  PosixFileSystem files;
  return attach(server, path, files);
}

Result<std::unique_ptr<Journal>> Journal::attach(MemoryServer& server, const std::string& path,
                                                 FileSystem& files) {
  TRY(Saved saved, read_saved(files, path));
  std::unique_ptr<Journal> journal(new Journal(server));
  auto file = std::make_shared<File>();
  file->path = path;
  file->clock = &server.clock();
  file->fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (file->fd < 0) return failed("opening", path);
  if (saved.good_bytes < saved.bytes &&
      ::ftruncate(file->fd, static_cast<off_t>(saved.good_bytes)) != 0)
    return failed("truncating", path);
  if (saved.lines > 0) saved.version += ObjectStore::kVersionBump;
  // A line without a kind removes nothing and has a version.
  TRY_OK(
      write_all(file->fd, saved.lines == 0 ? header(0) : line({}, saved.version, nullptr), path));
  if (::fdatasync(file->fd) != 0) return failed("syncing", path);
  TRY_OK(file->disk.sync_directory(parent_of(path)));
  file->lines = saved.lines + 1;
  for (const auto& [id, object] : saved.objects) file->present.insert(id);
  journal->file_ = file;
  server.load(
      [&](ObjectStore& store) {
        for (auto& [id, object] : saved.objects) store.restore(id, object);
        store.restore_version(saved.version);
      },
      [file](const StoreId& id, std::uint64_t version, const Value* object) {
        return file->append(id, version, object);
      });
  if (file->failure) return *file->failure;
  return journal;
}

Journal::~Journal() {
  server_.follow(nullptr);
  (void)flush();
}

Status Journal::flush() {
  if (file_->wants_compaction())
    server_.visit([&](const ObjectStore& store) { file_->compact(store); });
  const std::lock_guard lock(file_->mutex);
  if (file_->failure) return *file_->failure;
  return file_->sync();
}

}  // namespace rubato::kube
