// Event files that TensorBoard reads: records (TFRecord: length, masked CRC-32C, bytes, masked CRC-32C) of
// Event messages, encoded by hand. Nothing of TensorFlow is needed.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/no_copy.h"
#include "runtime/status.h"

namespace gacc {

struct Figure {
  std::string_view tag;
  double value = 0;
};

// One file of a run, DIR/events.out.tfevents.SECONDS.HOST.PID. It only grows, and every event is written at
// once: TensorBoard may read along, and a run that is killed, or finds the disk full, leaves whole events.
class EventFile : NoCopy {
 public:
  ~EventFile();  // without close() and without a figure nothing is left

  // Makes the folder if need be, and begins a file. `resume`: the last step that stays; TensorBoard then
  // forgets what earlier files of the folder say of later ones.
  Status open(const std::string& folder, std::optional<int64_t> resume = {});
  bool is_open() const { return fd_ >= 0; }
  // One event with all these figures; does nothing when not open.
  Status write(int64_t step, std::span<const Figure> figures);
  Status close();  // to disk

 private:
  Status write_event(std::string_view event);

  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;   // of whole events
  bool shows_ = false;  // some figure
};

uint32_t crc32c(std::string_view bytes);

}  // namespace gacc
