#include "runtime/ranks/launcher.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
#include "runtime/plugin.h"

namespace gacc {
namespace {

constexpr Plugin kMpi = {"the MPI plug-in", "libgacc-mpi.so", "gacc-mpi"};

// The word of a launcher: the name of the variable (empty: there is none), and the number of ranks, where
// it is said. Slurm's own variables say nothing: srun starts programs that know no MPI, too.
struct Launched {
  std::string by;
  int ranks = 0;
};

Launched launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* value = std::getenv(name)) return {name, std::atoi(value)};
  return std::getenv("PMIX_RANK") != nullptr ? Launched{"PMIX_RANK"} : Launched{};
}

Result<std::unique_ptr<Collective>> load_mpi(const CollectiveOptions& options) {
  // Global: MPI libraries load parts of their own that look for its names.
  const LoadedPlugin plugin = GACC_TRY(load_plugin(kMpi, "gacc_create_collective", RTLD_GLOBAL));
  const auto create = reinterpret_cast<gacc_create_collective_fn>(plugin.entry);
  std::string error;
  std::unique_ptr<Collective> ranks(create == nullptr ? nullptr : create(kCollectiveAbi, &options, &error));
  if (ranks) return ranks;
  return error.empty() ? plugin.outdated() : Status::error(std::move(error));
}

// The same for all processes that share processors and GPUs, whatever they call their host.
std::string machine() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() ? host_name() : id;
}

}  // namespace

Result<std::unique_ptr<Collective>> open_collective(const CollectiveOptions& options) {
  const Launched by = launched();
  if (by.by.empty() || by.ranks == 1) return std::make_unique<Collective>();
  Result<std::unique_ptr<Collective>> ranks = load_mpi(options);
  if (!ranks)
    return Status::error("started as one of several ranks ({} is set): {}", by.by, ranks.status().text());
  if (by.ranks == 0 || by.ranks == (*ranks)->size()) return ranks;
  return Status::error(
      "{} says {} ranks, the MPI library {}: the launcher is of another MPI than libgacc-mpi.so", by.by,
      by.ranks, (*ranks)->size());
}

Result<RankPlace> find_place(Collective& ranks) {
  RankPlace place;
  if (ranks.size() == 1) return place;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  const std::string text = std::string(bytes_of(mine)) + machine();
  const std::vector<std::string> all = GACC_TRY(all_gather(ranks, text));
  int sharing = 0;
  for (int r = 0; r < ranks.size(); ++r) {
    const std::string& other = all[static_cast<size_t>(r)];
    if (other.substr(sizeof mine) != text.substr(sizeof mine)) continue;
    place.local_rank += r < ranks.rank();
    cpu_set_t set;
    std::memcpy(&set, other.data(), sizeof set);
    CPU_AND(&set, &set, &mine);
    sharing += CPU_COUNT(&set) > 0;
  }
  place.threads = std::max(1, CPU_COUNT(&mine) / std::max(1, sharing));
  return place;
}

Status start_ranks(int64_t ranks, int argc, char** argv) {
  if (const Launched by = launched(); !by.by.empty())
    return Status::error(
        "--ranks starts mpirun itself, and this process was started by a launcher ({} is set)", by.by);
  GACC_TRY(find_plugin(kMpi));
  // Threads are divided here, and processors are for the system to give.
  std::vector<std::string> words = {"mpirun",    "-n",   fmt::format("{}", ranks), "--oversubscribe",
                                    "--bind-to", "none", executable_path()};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--ranks")
      ++i;
    else if (!word.starts_with("--ranks="))
      words.emplace_back(word);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Debian's name for Open MPI's, where several MPI libraries are installed.
  for (const char* name : {"mpirun.openmpi", "mpirun"}) execvp(name, arguments.data());
  return Status::error("--ranks: cannot start mpirun: {} (Debian package openmpi-bin)", system_reason(errno));
}

}  // namespace gacc
