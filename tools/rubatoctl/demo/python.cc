#include "tools/rubatoctl/demo/python.h"

#include "tools/rubatoctl/local/commands.h"

#include <filesystem>
#include <fstream>

#include <fmt/core.h>

namespace rubato::ctl {

namespace fs = std::filesystem;
namespace {

constexpr const char* kLibrary = "librubato_pytorch.so";
constexpr const char* kImportTorch =
    "import sys\n"
    "try: import torch\n"
    "except ImportError as error: sys.exit(print(error) or 1)\n"
    "print(sys.executable)";

std::string libraries() { return fs::path(program_folder()).parent_path().string() + "/lib"; }

}  // namespace

Result<PythonPlace> find_python(Executor& executor, const std::string& interpreter,
                                const std::string& folder,
                                const std::function<bool()>& should_stop) {
  PythonPlace place{"", libraries() + "/rubato/python", ""};  // as installed
  place.library = place.package + "/rubato/" + kLibrary;
  if (!fs::exists(place.package))
    place = {"", RUBATO_SOURCE_DIR "/python", libraries() + "/" + kLibrary};
  if (!fs::exists(place.library))
    return Error(Code::kNotFound,
                 place.library +
                     " is not there\n  What to do: make release, or install Rubato with "
                     "its component python");

  // -I: pods have neither the variables of this shell nor the packages of its user.
  const std::string output = folder + "/python.txt";
  const Status ran =
      run_program(executor, {interpreter, "-I", "-c", kImportTorch}, output, should_stop);
  std::string said;
  std::getline(std::ifstream(output), said);
  if (!ran.ok() && ran.error().code() == Code::kCancelled) return ran.error();
  if (!ran.ok())
    return Error(
        Code::kNotFound,
        fmt::format("{} cannot import torch: {}\n  What to do: `make demo-pytorch` brings a "
                    "Python with PyTorch; or name one that has it with --python FILE",
                    interpreter, said.empty() ? ran.error().what() : said));
  place.interpreter = said;
  return place;
}

std::string testing_library() { return libraries() + "/testing/" + kLibrary; }

}  // namespace rubato::ctl
