#include "train/eval/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "data/utf8.h"

namespace goat {

namespace {
constexpr std::size_t most_columns = 100, cell_columns = 11;

using Values = std::map<std::int64_t, double>;  // by length

struct Table {
  std::string title;
  std::vector<std::pair<std::string, Values>> rows;
  std::set<std::string> data;  // descriptions of what was evaluated
  bool is_task = false;
};

template <class... Arguments>
std::string formatted(const char* format, Arguments... arguments) {
  char text[64];
  std::snprintf(text, sizeof text, format, arguments...);
  return text;
}

bool is_task(const nlohmann::json& evaluation) { return evaluation.contains("task"); }

std::string title_of(const nlohmann::json& evaluation) {
  if (is_task(evaluation))
    return evaluation["task"].get<std::string>() + ": answer tokens that are right, by length";
  return "perplexity by length, protocol " + evaluation["protocol"].get<std::string>();
}

// Means over the rows of a length, which are its depths.
Values values_of(const nlohmann::json& evaluation) {
  const char* key = is_task(evaluation) ? "span_token_accuracy" : "perplexity";
  std::map<std::int64_t, std::pair<double, std::int64_t>> sums;
  for (const nlohmann::json& row : evaluation["results"]) {
    auto& [sum, count] = sums[row["length"].get<std::int64_t>()];
    sum += row[key].get<double>();
    ++count;
  }
  Values values;
  for (const auto& [length, sum] : sums) values[length] = sum.first / static_cast<double>(sum.second);
  return values;
}

std::string cell(const Table& table, const Values& values, std::int64_t length) {
  const auto value = values.find(length);
  if (value == values.end()) return "-";
  if (table.is_task) return formatted("%.1f%%", 100 * value->second);
  return formatted(value->second < 1e5 ? "%.3f" : "%.3g", value->second);
}

std::string line_of(const std::string& name, std::size_t name_columns,
                    const std::vector<std::string>& cells) {
  std::string line = name + std::string(name_columns - terminal_columns(name), ' ');
  for (const std::string& text : cells)
    line += std::string(std::max<std::size_t>(cell_columns, text.size() + 1) - text.size(), ' ') + text;
  return line + "\n";
}

// One piece of the table: the columns of `lengths`.
std::string piece_of(const Table& table, std::size_t name_columns, std::span<const std::int64_t> lengths) {
  std::vector<std::string> cells;
  for (const std::int64_t length : lengths) cells.push_back(std::to_string(length));
  std::string text = line_of("", name_columns, cells);
  for (const auto& [name, values] : table.rows) {
    cells.clear();
    for (const std::int64_t length : lengths) cells.push_back(cell(table, values, length));
    text += line_of(name, name_columns, cells);
  }
  return text;
}

std::string text_of(const Table& table) {
  std::set<std::int64_t> all;
  std::size_t name_columns = 0;
  for (const auto& [name, values] : table.rows) {
    name_columns = std::max(name_columns, terminal_columns(name));
    for (const auto& [length, value] : values) all.insert(length);
  }
  const std::vector<std::int64_t> lengths(all.begin(), all.end());
  const std::size_t room = most_columns - std::min(name_columns, most_columns),
                    columns = std::max<std::size_t>(room / cell_columns, 1);
  std::string text = table.title + (table.data.size() > 1 ? " (of different data, see above)" : "") + "\n";
  for (std::size_t first = 0; first < lengths.size(); first += columns)
    text += piece_of(table, name_columns,
                     std::span(lengths).subspan(first, std::min(columns, lengths.size() - first)));
  return text;
}
}  // namespace

std::string comparison_text(const std::vector<std::string>& names,
                            const std::vector<nlohmann::json>& evaluations) {
  std::vector<Table> tables;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    const std::string title = title_of(evaluations[i]);
    auto table = std::ranges::find(tables, title, &Table::title);
    if (table == tables.end())
      table =
          tables.insert(table, {.title = title, .rows = {}, .data = {}, .is_task = is_task(evaluations[i])});
    table->rows.emplace_back(names[i], values_of(evaluations[i]));
    if (evaluations[i].contains("data")) table->data.insert(evaluations[i]["data"].get<std::string>());
  }
  std::string text;
  for (const Table& table : tables) text += (text.empty() ? "" : "\n") + text_of(table);
  return text;
}

}  // namespace goat
