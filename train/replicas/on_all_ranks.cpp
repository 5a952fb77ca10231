#include "train/replicas/on_all_ranks.h"

#include <algorithm>
#include <cstdint>
#include <exception>

#include "data/data_error.h"
#include "kernels/device_lost.h"
#include "train/config/config.h"

namespace goat {

namespace {
// How a rank's call ended: one character before the text that it returned or threw.
enum class Ended : char { well = ' ', in_config_error = 'C', in_data_error = 'D', in_error = 'E' };

constexpr std::size_t most_named = 3;  // ranks, in a text

std::string outcome_of(const std::function<std::string()>& act, std::exception_ptr& thrown) {
  const auto failed = [&](Ended how, const char* reason) {
    thrown = std::current_exception();
    return static_cast<char>(how) + std::string(reason);
  };
  try {
    return static_cast<char>(Ended::well) + act();
  } catch (const ConfigError& error) {
    return failed(Ended::in_config_error, error.what());
  } catch (const DataError& error) {
    return failed(Ended::in_data_error, error.what());
  } catch (const std::bad_alloc&) {
    return failed(Ended::in_error, "out of memory on the host");
  } catch (const std::exception& error) {
    return failed(Ended::in_error, error.what());
  }
}

Ended ending_of(const std::string& outcome) { return static_cast<Ended>(outcome.at(0)); }

[[noreturn]] void throw_as(Ended how, const std::string& text) {
  if (how == Ended::in_config_error) throw OnAllRanks<ConfigError>(text);
  if (how == Ended::in_data_error) throw OnAllRanks<DataError>(text);
  throw OnAllRanks<std::runtime_error>(text);
}

// Every rank's text, of any length: a single exchange has a limit.
std::vector<std::string> gather_long(RankGroup& group, std::string_view what, std::string_view text) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t most = std::min<std::size_t>(1 << 20, most_gathered / ranks - 1);
  std::vector<std::string> texts(ranks);
  for (bool more = true; more;) {
    const std::string_view part = text.substr(0, most);
    text.remove_prefix(part.size());
    more = false;
    const std::vector<std::string> parts = group.gather(what, (text.empty() ? "." : "+") + std::string(part));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      texts[rank] += std::string_view(parts[rank]).substr(1);
      more = more || parts[rank].starts_with('+');
    }
  }
  return texts;
}

bool is_device_lost(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const DeviceLost&) {
    return true;
  } catch (...) {
  }
  return false;
}

// "rank 1 (host b, pid 7): the disk is full; rank 2 (...): ...". Empty if all went well.
std::string reasons_of(const RankGroup& group, const std::vector<std::string>& outcomes) {
  std::string text;
  std::size_t failed = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    if (ending_of(outcomes[rank]) != Ended::well && ++failed <= most_named)
      text += (text.empty() ? "" : "; ") + name_of(group.peers()[rank]) + ": " + outcomes[rank].substr(1);
  if (failed > most_named) text += "; and " + std::to_string(failed - most_named) + " more ranks";
  return text;
}
}  // namespace

std::vector<std::string> on_all_ranks(RankGroup& group, std::string_view what,
                                      const std::function<std::string()>& act) {
  if (group.size() == 1) return {act()};
  std::exception_ptr thrown;
  std::vector<std::string> outcomes = gather_long(group, what, outcome_of(act, thrown));
  const std::string reasons = reasons_of(group, outcomes);
  if (is_device_lost(thrown)) throw DeviceLost(reasons);
  const auto bad = std::ranges::find_if(
      outcomes, [](const std::string& outcome) { return ending_of(outcome) != Ended::well; });
  if (bad != outcomes.end()) throw_as(ending_of(*bad), reasons);
  for (std::string& outcome : outcomes) outcome.erase(0, 1);
  return outcomes;
}

std::string on_rank_0(RankGroup& group, std::string_view what, const std::function<std::string()>& act) {
  if (group.size() == 1) return act();
  std::exception_ptr thrown;
  const std::string own = group.rank() == 0 ? outcome_of(act, thrown) : std::string(1, ' ');
  const std::string outcome = gather_long(group, what, own).front();
  if (ending_of(outcome) != Ended::well) throw_as(ending_of(outcome), outcome.substr(1));
  return outcome.substr(1);
}

}  // namespace goat
