#include "kernels/signature.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "kernels/memory_access.h"

namespace goat {

namespace {
thread_local std::vector<MemoryAccess>* noted = nullptr;  // of accesses_of()

bool is_number(const char* symbol) {
  return *symbol >= '0' && *symbol <= '9' && std::strspn(symbol, "0123456789") == std::strlen(symbol);
}

bool fits(DType dtype, Element element) {
  switch (element) {
    case Element::activation:
    case Element::weight:
    case Element::real: return dtype == DType::f32 || dtype == DType::bf16;
    case Element::f32_or_f64: return dtype == DType::f32 || dtype == DType::f64;
    case Element::f32: return dtype == DType::f32;
    case Element::f64: return dtype == DType::f64;
    case Element::i32: return dtype == DType::i32;
  }
  return false;
}

const char* text_of(Element element) {
  switch (element) {
    case Element::activation:
    case Element::weight:
    case Element::real: return "f32 or bf16";
    case Element::f32_or_f64: return "f32 or f64";
    case Element::f32: return "f32";
    case Element::f64: return "f64";
    case Element::i32: return "i32";
  }
  return "unknown element";
}

bool last_dimension_has_gaps(const Tensor& t) {
  return t.rank > 0 && t.shape[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1;
}

// From the first to the last element.
std::size_t extent_in_bytes(const Tensor& t) {
  if (t.elements() == 0) return 0;
  std::int64_t last = 0;
  for (int dim = 0; dim < t.rank; ++dim) last += (t.shape[dim] - 1) * t.stride[dim];
  return static_cast<std::size_t>(last + 1) * size_of(t.dtype);
}
}  // namespace

std::vector<MemoryAccess> accesses_of(const std::function<void()>& check) {
  struct Notes {
    std::vector<MemoryAccess> accesses;
    Notes() { noted = &accesses; }
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;
    ~Notes() { noted = nullptr; }
  } notes;
  check();
  return std::move(notes.accesses);
}

void Signature::contiguous(Field field, const Tensor& tensor, Element element, Symbols extents) {
  present(field.name, tensor);
  check_element(field.name, tensor, element);
  check_shape(field.name, tensor, extents);
  if (!tensor.is_contiguous()) fail(field.name, tensor, "expected a contiguous tensor");
  note(field, tensor);
}

void Signature::strided(Field field, const Tensor& tensor, Element element, Symbols extents) {
  present(field.name, tensor);
  check_element(field.name, tensor, element);
  check_shape(field.name, tensor, extents);
  if (last_dimension_has_gaps(tensor))
    fail(field.name, tensor,
         "expected stride 1 in the last dimension, not " + std::to_string(tensor.stride[tensor.rank - 1]));
  note(field, tensor);
}

void Signature::elementwise(Field field, const Tensor& tensor, Element element) {
  present(field.name, tensor);
  check_element(field.name, tensor, element);
  if (!tensor.is_contiguous()) fail(field.name, tensor, "expected a contiguous tensor");
  if (!elementwise_field_) {
    elementwise_ = tensor;
    elementwise_field_ = field.name;
  } else if (tensor.rank != elementwise_.rank || tensor.shape != elementwise_.shape) {
    fail(field.name, tensor, "expected shape " + elementwise_.shape_text() + " like " + elementwise_field_);
  }
  note(field, tensor);
}

void Signature::given(Field field, const void* operand, std::size_t bytes) const {
  if (!operand) fail(std::string(field.name) + " is missing");
  note(field, operand, bytes);
}

void Signature::note(Field field, const void* memory, std::size_t bytes) const {
  if (noted) noted->push_back({memory, bytes, field.written, std::string(field.name) + " of " + operation_});
}
// Parts of a tensor that lie far apart, in any order, are noted one by one: what lies between them is not
// touched.
void Signature::note(Field field, const Tensor& tensor) const {
  if (!noted) return;
  constexpr std::int64_t most_parts = 64;
  if (tensor.rank < 2 || tensor.is_contiguous() || tensor.shape[0] > most_parts)
    return note(field, tensor.data, extent_in_bytes(tensor));
  for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
    const Tensor part = tensor.select(0, i);
    note(field, part.data, extent_in_bytes(part));
  }
}

void Signature::together(const char* field, const Tensor& tensor, const char* other_field,
                         const Tensor& other) const {
  if (static_cast<bool>(tensor) == static_cast<bool>(other)) return;
  const char* given = tensor ? field : other_field;
  const char* missing = tensor ? other_field : field;
  fail(std::string(given) + " is given without " + missing + ": give both or neither");
}

void Signature::define(const char* symbol, std::int64_t extent, const char* field) {
  if (binding_count_ == max_bindings)
    throw std::logic_error(std::string(operation_) + ": more than 12 extents in a signature");
  bindings_[binding_count_++] = {symbol, extent, field};
}

std::int64_t Signature::operator[](const char* symbol) const {
  const Binding* binding = find(symbol);
  return binding ? binding->extent : 0;
}

void Signature::require(bool holds, const char* rule, Symbols symbols) const {
  if (!holds) fail(std::string("expected ") + rule + where(symbols));
}

void Signature::scalar(const char* field, std::int64_t value, bool holds, const char* rule,
                       Symbols symbols) const {
  if (!holds) fail(field + (" = " + std::to_string(value)) + ": expected " + rule + where(symbols));
}

void Signature::scalar(const char* field, float value, bool holds, const char* rule, Symbols symbols) const {
  if (holds) return;
  std::ostringstream text;
  text << field << " = " << value << ": expected " << rule << where(symbols);
  fail(text.str());
}

const Signature::Binding* Signature::find(const char* symbol) const {
  const auto end = bindings_.begin() + binding_count_;
  const auto found = std::find_if(bindings_.begin(), end,
                                  [&](const Binding& b) { return std::strcmp(b.symbol, symbol) == 0; });
  return found == end ? nullptr : &*found;
}

void Signature::present(const char* field, const Tensor& tensor) const {
  if (tensor.data || (tensor.rank > 0 && tensor.elements() == 0)) return;
  if (tensor.rank == 0) fail(std::string(field) + " is missing");
  fail(field, tensor, "has no memory");
}

void Signature::check_element(const char* field, const Tensor& tensor, Element element) {
  if (!fits(tensor.dtype, element)) fail(field, tensor, std::string("expected ") + text_of(element));
  if (element != Element::activation && element != Element::weight) return;
  if (!model_dtype_field_) {
    model_dtype_ = tensor.dtype;
    model_dtype_field_ = field;
  } else if (tensor.dtype != model_dtype_) {
    fail(field, tensor, std::string("expected ") + name_of(model_dtype_) + " like " + model_dtype_field_);
  }
}

void Signature::check_shape(const char* field, const Tensor& tensor, Symbols extents) {
  if (static_cast<std::size_t>(tensor.rank) != extents.size())
    fail(field, tensor, "expected shape " + expected_shape(extents));
  int dim = 0;
  for (const char* symbol : extents) {
    const std::int64_t extent = tensor.shape[dim++];
    const Binding* binding = find(symbol);
    if (!binding && !is_number(symbol)) {
      define(symbol, extent, field);
    } else if (extent != (binding ? binding->extent : std::stoll(symbol))) {
      fail(field, tensor, "expected shape " + expected_shape(extents) + where({symbol}));
    }
  }
}

// "[B, T, 2] = [4, 8, 2]". An extent that is not known yet is shown as its symbol.
std::string Signature::expected_shape(Symbols extents) const {
  std::string symbols, values;
  for (const char* symbol : extents) {
    const Binding* binding = find(symbol);
    symbols += (symbols.empty() ? "" : ", ") + std::string(symbol);
    values += (values.empty() ? "" : ", ") + (binding ? std::to_string(binding->extent) : symbol);
  }
  return "[" + symbols + "]" + (symbols == values ? "" : " = [" + values + "]");
}

// " (C = 4 in x, R = 2 in alpha)", or an empty string if no operand has such an extent.
std::string Signature::where(Symbols symbols) const {
  std::string text;
  for (const char* symbol : symbols)
    if (const Binding* binding = find(symbol))
      text += (text.empty() ? " (" : ", ") + std::string(symbol) + " = " + std::to_string(binding->extent) +
              " in " + binding->field;
  return text.empty() ? text : text + ")";
}

void Signature::fail(const std::string& what) const {
  throw std::invalid_argument(std::string(operation_) + ": " + what);
}

void Signature::fail(const char* field, const Tensor& tensor, const std::string& what) const {
  const bool named = *tensor.name && std::strcmp(tensor.name, field) != 0;
  fail(std::string(field) + (named ? " '" + std::string(tensor.name) + "'" : "") + " " + tensor.shape_text() +
       " " + name_of(tensor.dtype) + ": " + what);
}

}  // namespace goat
