// Durable file operations of checkpoints. Errors are kUnavailable with the path and the system's
// words.
#pragma once

#include "common/result.h"

#include <string>
#include <string_view>

namespace rubato::worker {

// Writes beside, syncs, renames: the path holds the old or the new text, never half.
Status replace_file(const std::string& path, std::string_view text);
Status sync_directory(const std::string& path);
Status rename_path(const std::string& from, const std::string& to);
// kNotFound when missing; kInvalid beyond `most` bytes.
Result<std::string> read_text(const std::string& path, std::size_t most);

}  // namespace rubato::worker
