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
//
// Versions: a life may have told its clients of versions that were lost. Each life therefore begins
// ObjectStore::kVersionBump above what the file has, and writes that first: watches from before it
// get 410.
//
// When a line cannot be written or synced, that write is answered with an error, the server refuses
// every later one, and flush() says why: end the process. When a rewrite fails (no room), the file
// stays as it is, and it is tried again after kCompactRetry.
#pragma once

#include "apiserver/memory/memory_server.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/result.h"

#include <memory>
#include <string>

namespace rubato::kube {

constexpr Duration kSyncPeriod = 1s;
constexpr std::size_t kCompactFactor = 4;
constexpr std::size_t kCompactMinLines = 4096;
constexpr Duration kCompactRetry = 60s;

class Journal {
 public:
  // Opens or creates the file (mode 0600), restores `server` from it and follows its changes.
  // kInvalid when a line other than the last cannot be parsed; what the disk does not give is an
  // error, and nothing is cut off then. The server must outlive the journal.
  static Result<std::unique_ptr<Journal>> attach(MemoryServer& server, const std::string& path);
  // The same, with the file read through `files`.
  static Result<std::unique_ptr<Journal>> attach(MemoryServer& server, const std::string& path,
                                                 FileSystem& files);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Compacts when due, and fsyncs. Not ok: a line could not be written or synced, here or before;
  // from then on changes are not kept. Thread-safe.
  Status flush();

 private:
  struct File;
  explicit Journal(MemoryServer& server) : server_(server) {}
  MemoryServer& server_;
  std::shared_ptr<File> file_;
};

}  // namespace rubato::kube
