// Journal: the state of a MemoryServer in one append-only file of JSON lines, so that the local API
// server goes on after a restart where it stopped.
//
//   {"journal":"rubato","version":1,"resourceVersion":41}      first line: state as of 41 follows
//   {"kind":"pods","key":"default/a","v":42,"object":{…}}      written or, without object, removed
//
// Durability: a line is written to the file at every change (a killed process loses nothing);
// fsync runs at most once per kSyncPeriod, at a change, in flush() and at the end (a power cut may
// lose the last moments). A torn last line is dropped on reading. flush() rewrites a file that has
// grown to kCompactFactor times the state, beside itself, and renames it: call it every few
// seconds. Written under the server's mutex: a change costs one serialisation and one write(2).
#pragma once

#include "apiserver/memory/memory_server.h"
#include "common/clock.h"
#include "common/result.h"

#include <memory>
#include <string>

namespace rubato::kube {

constexpr Duration kSyncPeriod = 1s;
constexpr std::size_t kCompactFactor = 4;
constexpr std::size_t kCompactMinLines = 4096;

class Journal {
 public:
  // Opens or creates the file (mode 0600), restores `server` from it and follows its changes.
  // kInvalid when a line other than the last cannot be read. The server must outlive the journal.
  static Result<std::unique_ptr<Journal>> attach(MemoryServer& server, const std::string& path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Compacts when due, and fsyncs. Thread-safe.
  Status flush();
  // The first failure of a write, if any: from then on changes are not kept.
  Status health() const;

 private:
  struct File;
  explicit Journal(MemoryServer& server) : server_(server) {}
  MemoryServer& server_;
  std::shared_ptr<File> file_;
};

}  // namespace rubato::kube
