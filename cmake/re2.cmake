# RE2 (Debian: libre2-dev), whose package of Debian 12 has no CMake files. Its time is linear in the
# text. Used by worker/script alone.
find_path(RE2_HEADERS re2/re2.h REQUIRED)
find_library(RE2_LIBRARY re2 REQUIRED)
add_library(re2 INTERFACE)
target_include_directories(re2 SYSTEM INTERFACE ${RE2_HEADERS})
target_link_libraries(re2 INTERFACE ${RE2_LIBRARY})
