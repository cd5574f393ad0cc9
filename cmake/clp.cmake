# COIN-OR's LP solver (Debian: coinor-libclp-dev), which comes without a CMake package. Its headers
# are written for one include folder. Used by scheduler/solver alone (docs/adr/lp-solver.md).
find_path(CLP_HEADERS ClpSimplex.hpp PATH_SUFFIXES coin REQUIRED)
find_library(CLP_LIBRARY Clp REQUIRED)
find_library(COINUTILS_LIBRARY CoinUtils REQUIRED)
add_library(clp INTERFACE)
target_include_directories(clp SYSTEM INTERFACE ${CLP_HEADERS})
target_link_libraries(clp INTERFACE ${CLP_LIBRARY} ${COINUTILS_LIBRARY})
