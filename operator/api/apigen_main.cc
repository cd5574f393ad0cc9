// rubato-apigen ROOT: writes ROOT/crds/*.yaml, their copies in the Helm chart, ROOT/docs/api.md and
// ROOT/docs/policies.md. rubato-apigen --check ROOT: writes nothing; fails when one of them differs
// from what it would be.
#include "operator/api/crd.h"
#include "scheduler/policy/registry.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string_view>

namespace {

using rubato::api::Kind;

std::map<std::string, std::string> generated() {
  std::map<std::string, std::string> files;
  for (const Kind& kind : rubato::api::kinds()) {
    const std::string text =
        "# Written by rubato-apigen from operator/api. Do not edit: run `make crds`.\n" +
        rubato::api::to_yaml(rubato::api::crd(kind));
    for (const char* folder : {"crds/", "helm/rubato/files/crds/"})
      files[folder + kind.type.plural + ".yaml"] = text;
  }
  files["docs/api.md"] = rubato::api::api_reference();
  files["docs/policies.md"] = rubato::sched::policies_page();
  return files;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

bool write(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  return out.good();
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc == 3 && std::string_view(argv[1]) == "--check";
  if (argc != 2 && !check) {
    std::cerr << "usage: rubato-apigen [--check] ROOT\n";
    return 2;
  }
  const std::filesystem::path root = argv[argc - 1];
  int stale = 0;
  for (const auto& [name, text] : generated()) {
    if (read(root / name) == text) continue;
    if (check) {
      std::cerr
          << name
          << " differs from the descriptors in operator/api or scheduler/policy: run `make crds`\n";
      ++stale;
    } else if (write(root / name, text)) {
      std::cout << "wrote " << name << "\n";
    } else {
      std::cerr << "cannot write " << (root / name) << "\n";
      return 1;
    }
  }
  return stale == 0 ? 0 : 1;
}
