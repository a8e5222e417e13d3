// gacc-exec: runs a compiled step on data. Signals and ranks are handled here, options in exec_arguments.h, the
// run in exec_run.h; the training itself is runtime/run/train.h. Links neither LLVM nor a GPU library: devices are
// plug-ins.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "compiler/open_artifact.h"
#include "runtime/ranks/collective.h"
#include "runtime/ranks/launcher.h"
#include "runtime/tell/waiting.h"
#include "tools/command_line.h"
#include "tools/exec_arguments.h"
#include "tools/exec_run.h"

namespace {

using namespace gacc;

std::atomic<bool> interrupt_seen = false;

// The first Ctrl-C, SIGTERM or SIGHUP ends the run in order, a second one ends it at once. A thread of its own waits
// for them, and all others block them: code of oneDNN loses what it keeps on the stack when a signal arrives
// (observed as a damaged heap, in about one of thirty interrupted runs).
void handle_interrupts() {
  signal(SIGPIPE, SIG_IGN);  // a closed standard output must not end the training
  sigset_t interrupts;
  sigemptyset(&interrupts);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    // nohup means what it says; but a shell has SIGINT ignored for every `gacc-exec ... &`.
    if (signal(number, SIG_DFL) == SIG_IGN && number == SIGHUP)
      signal(number, SIG_IGN);
    else
      sigaddset(&interrupts, number);
  }
  pthread_sigmask(SIG_BLOCK, &interrupts, nullptr);
  std::thread([interrupts] {
    int number = 0;
    while (sigwait(&interrupts, &number) != 0) continue;
    interrupt_seen = true;
    pthread_sigmask(SIG_UNBLOCK, &interrupts, nullptr);
    while (true) pause();
  }).detach();
}

// Becomes a launcher of so many processes, once it is clear that the artifact can be run by them.
Status start_all_ranks(const Arguments& arguments, int argc, char** argv) {
  const Artifact artifact = GACC_TRY(open_artifact(arguments.artifact));
  GACC_TRY(check_ranks(artifact.plan, arguments.mode(), *arguments.ranks));
  return start_ranks(*arguments.ranks, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  auto ranks = std::make_unique<Collective>();  // until it is known that there are others
  const auto give_up = [&](Exit status, const std::string& text) {
    if (ranks->fail(text)) fail(status, text);
    return ranks->end(status);
  };
  try {
    if (const std::optional<int> ended = parse_arguments(argc, argv, arguments)) return *ended;
    if (arguments.ranks.value_or(1) > 1)
      if (const Status status = start_all_ranks(arguments, argc, argv); !status) return exit_status(status);
    handle_interrupts();  // before MPI makes threads
    Result<std::unique_ptr<Collective>> opened = open_collective({arguments.rank_timeout});
    if (!opened) return exit_status(opened.status());
    ranks = opened.take();
    const Waiting waiting(arguments.quiet || ranks->rank() != 0);
    return Run(arguments, *ranks, [] { return interrupt_seen.load(); }).execute();
  } catch (const std::bad_alloc&) {
    return give_up(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return give_up(kBug, fmt::format("internal error: {}\nThis is a bug in gacc; please report it with the "
                                     "model file and the command line.",
                                     error.what()));
  }
}
