// The calls of a group on one communicator, as they run in their stream.
#pragma once

#include <memory>
#include <vector>

#include "kernels/simt/nccl_comm.h"

namespace goat::on_simt {

class NcclTransfer {
 public:
  explicit NcclTransfer(std::vector<NcclCall> calls);
  void poison() const;  // what will be received
  // Moves the bytes. Throws RankLost if another rank does not take part any more, and std::runtime_error
  // after ncclCommAbort. The communicator has failed then.
  void run();

 private:
  // What goes to a rank, or comes from it, one after the other.
  struct Parcel {
    std::byte* memory;
    std::size_t bytes;
  };
  struct Lane {
    bool sends, collective;
    int peer;
    std::vector<Parcel> parcels{};
    std::size_t next = 0, done = 0;  // parcels, and bytes of the next one
  };

  void suffer();
  void prepare(const NcclCall& call);
  void add(const NcclCall& call, bool sends, int peer, const void* memory);
  void move();
  bool step(Lane& lane);
  bool is_ready(const Lane& lane) const;
  NcclMailbox& mailbox(const Lane& lane) const;
  bool is_over(const Lane& lane) const;
  void look_after(const Lane& lane) const;
  void add_up(const NcclCall& call) const;

  const std::vector<NcclCall> calls_;
  ncclComm& comm_;
  const std::shared_ptr<NcclBoard> board_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<std::byte>> parts_;  // of each call that adds up, from each rank
  bool dies_ = false;
};

}  // namespace goat::on_simt
