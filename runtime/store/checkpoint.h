// Checkpoints: everything a run needs to go on with the same bits in another process. One file,
// DIR/checkpoint, replaced as a whole: a new one is written beside it, synced and renamed, so there is always
// a whole one. One that another run left, and this one does not go on from, stays as DIR/checkpoint.old.
//
//   bytes 0..23      "gacc checkpoint\n", format version (u32), CRC-32 of the 20 bytes before
//   then             the plan's buffers but for those of open lanes, raw and without gaps, in plan order
//   then             the best parameters so far, where the run keeps them: a safetensors file
//   then             the table: one JSON object with the settings, the loop's state, the log's position, and
//                    name, kind, type, shape, size and CRC-32 of every buffer
//   last 24 bytes    size of the table (u64), size of the file (u64), CRC-32 of the table, CRC-32 of the 20
//                    bytes before
//
// Numbers are little-endian. Every byte is under a checksum, so a file that is cut or altered is refused.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/no_copy.h"
#include "runtime/reports.h"
#include "runtime/session/session.h"

namespace gacc {

constexpr uint32_t kCheckpointVersion = 1;

// Settings that must agree for a run to go on, as name and value: the compiled model's settings, the data, shuffling
// and seed. `order` is this run's. Not among them, so that a resumed run may differ:
// the limits (epochs, updates, launches), evaluation, threads and device, the learning rate (see RunRate).
using Settings = std::vector<std::pair<std::string, std::string>>;
Settings settings_of(const Artifact& artifact, const Dataset& data, const DataOrder& order);

// Takes from `saved` the settings that an evaluation need not share with the run: the data, their order and the seed.
void keep_to_model(Settings& settings, const Settings& saved);

// The base learning rate: the model's, and the one used, which --lr may have replaced.
struct RunRate {
  double of_model = 0, used = 0;
};

struct Checkpoint {
  Settings settings;
  RunRate rate;
  TrainState train;
  LogPosition log;
  std::string gemm_choices{};  // Device::gemm_choices
  // The file of --save-best as it was, so that a resumed run has it whatever became of the file since.
  std::string best{};
  Metadata data{};  // what the run has learnt from its training data (runtime/data/data_facts.h)
};

// A folder with a checkpoint, reserved for this process: another run that names the same folder is refused.
class CheckpointFolder : NoCopy {
 public:
  ~CheckpointFolder();

  // Makes the folder if need be, and removes what a killed run has left half-written in it.
  Status open(const std::string& path);
  const std::string& file() const { return file_; }
  // The name under which the checkpoint that is there is kept when another run replaces it: DIR/checkpoint.old
  // (beside the file, where DIR/checkpoint is a link). Empty when there is none.
  std::string name_for_old() const;

 private:
  std::string file_;
  int fd_ = -1;  // holds the lock
};

// The files of a checkpoint folder of that name that a run replaces.
std::vector<std::string> checkpoint_files(const std::string& folder);

// True for a buffer that checkpoints have: all but what `close` works with, which belongs to an open window, and
// what follows from how many ranks share it.
bool is_kept(const PlanBuffer& buffer);

// Replaces the file by the state of the session and `checkpoint`; the old one is kept as `keep`, if not
// empty.
Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Plan& plan,
                        Session& session, const std::string& keep = "");
// Takes the part of the other ranks meanwhile, where all have a part of the state.
Status share_for_checkpoint(const Plan& plan, Session& session);

// A buffer, as the table has it.
struct CheckpointEntry {
  std::string name, kind, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  uint32_t crc32 = 0;
};

class CheckpointReader {
 public:
  // Reads and checks all of it; an error says what is wrong with the file.
  Status open(const std::string& path);
  const Checkpoint& content() const { return content_; }
  // An error names the first setting or tensor that differs.
  Status check(const Plan& plan, const Settings& settings) const;
  // Puts the buffers into an initialised session. `check` must have passed.
  Status restore(const Plan& plan, Session& session) const;

 private:
  Status damaged(std::string_view what) const;
  // Also where the buffers end in the file.
  Result<int64_t> read_table(std::string_view text);

  std::string path_;
  Checkpoint content_;
  std::vector<CheckpointEntry> entries_;
  int64_t best_bytes_ = 0;
  uint32_t best_crc_ = 0;
};

}  // namespace gacc
