// Recorded programs: steps of an iterative method as lists of instructions on blocks of columns and on
// numbers of a column, fused into passes over chunks of rows, many iterations in one call.
// learnsolve/ops/program.py records, fuses and encodes them, program_adjoint.py reverses them. Sums are of
// chunks of rows, which depend on A and k alone, added up in order, in double: the same bits for any number
// of threads.
//
// A tape holds vectors of every iteration, in stacks: what a program keeps, and what its adjoint, which goes
// through the iterations from the last to the first, reads.
#include <cmath>

#include "ops/host.h"
#include "ops/solves.h"

namespace learnsolve {
namespace {

// The numbers are those of learnsolve/ops/program.py.
enum LeadKind : int64_t { kProduct, kSolve };                            // of all rows of a vector
enum VectorKind : int64_t { kCombine, kScaleRows, kDot, kAbsoluteDot };  // of a chunk
enum NumberKind : int64_t { kAdd, kSub, kMul, kDiv, kSqrt, kMax, kLess, kAtMost, kEqual, kWhere, kAbs };
// Of an operand: a matrix, a triangle (lower, upper, and both with a unit diagonal), numbers of rows.
enum Form : int64_t { kMatrix, kLower, kUpper, kUnitLower, kUnitUpper, kRowNumbers };

struct Lead {
  int64_t kind, operand, out, in;
};
struct VectorOp {
  int64_t kind, out, square, count;  // square: the number of <out, out>, or -1; of kScaleRows a[0]: operand
  int64_t v[kTerms], a[kTerms];
};
struct NumberOp {
  int64_t kind, out, a, b, c;
};
struct Pass {
  std::vector<Lead> leads;
  std::vector<VectorOp> ops;
  std::vector<NumberOp> numbers;
  std::vector<int64_t> sums;  // the numbers that it adds up
};

// Vectors of every iteration, one after another, after those that were there before the first.
struct Stack {
  int64_t vector;               // that is kept
  std::vector<int64_t> before;  // inputs
};
// An input that is read from a stack: at iteration i of the adjoint, which is number first - i, the value
// after `shift` iterations more, 1 for what that iteration has kept.
struct Reading {
  int64_t input, stack, shift;
};

struct Program {
  int64_t inputs, states, temporaries, scratch, registers;  // vectors: inputs, then temporaries, then scratch
  int64_t norm, commit, stop, doubt, lost;                  // numbers; doubt, lost: or -1
  std::vector<Stack> kept;
  std::vector<int64_t> read;  // of the tape that is read, the vectors before the first iteration of a stack
  std::vector<Reading> readings;
  int64_t first_known, known;                       // numbers that are read with the tape
  std::vector<int64_t> ends, in_place;              // the next value of each state; those that are written
  std::vector<std::pair<int64_t, int64_t>> copies;  // from, to
  std::vector<NumberOp> before;
  std::vector<Pass> passes, check;  // check: what decides about a doubt

  Program(const char* name_, const Tensor& code_, const std::vector<int64_t>& forms_)
      : name(name_), code(data<int64_t>(code_)), length(code_.numel()), forms(forms_) {
    for (int64_t* t : {&inputs, &states, &temporaries, &scratch, &registers}) *t = count();
    STD_TORCH_CHECK(states <= inputs, name, ": states must be inputs");
    norm = number(), commit = number(), stop = number();
    doubt = next(-1, registers), lost = next(-1, registers);
    kept.resize(count());
    for (Stack& stack : kept) {
      stack.vector = next(inputs, inputs + temporaries);
      for (int64_t i = count(); i > 0; --i) stack.before.push_back(next(0, inputs));
    }
    read.resize(count());
    for (int64_t& before : read) before = count();
    for (int64_t i = count(); i > 0; --i) {
      const int64_t input = next(states, inputs), stack = next(0, read.size());
      readings.push_back({input, stack, 1 - next(0, read[stack] + 1)});
    }
    first_known = next(0, registers + 1), known = next(0, registers + 1 - first_known);
    for (int64_t i = 0; i < states; ++i) ends.push_back(vector(false));
    for (int64_t i = count(); i > 0; --i) {
      const int64_t from = number();
      copies.emplace_back(from, number());
    }
    before = number_ops();
    passes = read_passes(), check = read_passes();
    for (const int64_t v : in_place)
      STD_TORCH_CHECK(ends[v] == v && std::count(ends.begin(), ends.end(), v) == 1, name,
                      ": code writes to a state that is not its own next value");
    STD_TORCH_CHECK(at == length && (doubt < 0) == check.empty() && (doubt < 0) == (lost < 0), name,
                    ": code has another length");
  }

 private:
  const char* name;
  const int64_t* code;
  int64_t length, at = 0;
  const std::vector<int64_t>& forms;

  int64_t next(int64_t low, int64_t high) {
    STD_TORCH_CHECK(at < length && code[at] >= low && code[at] < high, name, ": code has no valid number at ",
                    at);
    return code[at++];
  }
  int64_t count() { return next(0, 1 << 16); }
  int64_t number() { return next(0, registers); }
  int64_t vector(bool or_scratch = true) {
    return next(0, inputs + temporaries + (or_scratch ? scratch : 0));
  }
  int64_t operand(int64_t low, int64_t high) {
    const int64_t i = next(0, forms.size());
    STD_TORCH_CHECK(forms[i] >= low && forms[i] <= high, name, ": operand ", i, " has another form");
    return i;
  }
  // A state where its next value takes its place.
  int64_t written(bool or_state) {
    const int64_t v = next(0, inputs + temporaries + scratch);
    STD_TORCH_CHECK(v >= inputs || (or_state && v < states), name, ": code writes to an input");
    if (v < states) in_place.push_back(v);
    return v;
  }
  std::vector<NumberOp> number_ops() {
    std::vector<NumberOp> ops(count());
    for (NumberOp& o : ops) {
      o.kind = next(kAdd, kAbs + 1), o.out = number();
      for (int64_t* t : {&o.a, &o.b, &o.c}) *t = number();
    }
    return ops;
  }
  std::vector<Pass> read_passes() {
    std::vector<Pass> list(count());
    for (Pass& p : list) {
      p.leads.resize(count());
      for (Lead& l : p.leads) {
        l.kind = next(kProduct, kSolve + 1);
        l.operand = l.kind == kProduct ? operand(kMatrix, kMatrix) : operand(kLower, kUnitUpper);
        l.out = next(inputs, inputs + temporaries), l.in = vector(false);
      }
      p.ops.resize(count());
      for (VectorOp& o : p.ops) {
        o.kind = next(kCombine, kAbsoluteDot + 1);
        const bool sums = o.kind >= kDot;
        o.out = sums ? number() : written(o.kind == kCombine);
        o.square = next(-1, registers), o.count = next(1, kTerms + 1);
        STD_TORCH_CHECK(o.kind == kCombine || o.count == (sums ? 2 : 1), name, ": code has a wrong count");
        for (int64_t t = 0; t < o.count; ++t) o.v[t] = vector();
        for (int64_t t = 0; o.kind == kCombine && t < o.count; ++t) o.a[t] = number();
        if (o.kind == kScaleRows) o.a[0] = operand(kRowNumbers, kRowNumbers);
        if (sums) p.sums.push_back(o.out);
        if (o.square >= 0) p.sums.push_back(o.square);
      }
      p.numbers = number_ops();
    }
    return list;
  }
};

// A matrix, a triangle or a diagonal, (n, n), with values.
struct Operand {
  std::optional<Structure> matrix;
  std::optional<TriangularStructure> triangle;
  Tensor values;
};

std::vector<Operand> operands_of(const char* name, const std::vector<Tensor>& tensors,
                                 const std::vector<int64_t>& forms, const Tensor& like) {
  std::vector<Operand> list;
  size_t at = 0;
  const int64_t n = like.size(0);
  for (const int64_t form : forms) {
    STD_TORCH_CHECK(form >= kMatrix && form <= kRowNumbers, name, ": there is no form ", form);
    const size_t length = form == kMatrix ? 5 : form == kRowNumbers ? 1 : 7;
    STD_TORCH_CHECK(at + length <= tensors.size(), name, ": there are not enough tensors for the forms");
    const auto first = tensors.begin() + at;
    const std::vector<Tensor> structure(first, first + length - 1);
    at += length;
    Operand o{{}, {}, dense(tensors[at - 1])};
    check_device(name, like, {&o.values});
    STD_TORCH_CHECK(o.values.dim() == 1 && o.values.scalar_type() == like.scalar_type(), name,
                    ": values must be of one matrix, and of the dtype of the vectors");
    int64_t rows = o.values.numel(), entries = rows;
    if (form == kMatrix) {
      o.matrix.emplace(name, structure);
      o.matrix->check_columns(n);
      rows = o.matrix->rows(), entries = o.matrix->nnz();
    } else if (form != kRowNumbers) {
      o.triangle.emplace(name, structure, form == kUpper || form == kUnitUpper, form >= kUnitLower);
      o.triangle->check_places(o.values.numel());
      rows = o.triangle->rows();
      if (!o.triangle->perm) entries = o.triangle->entries();
    }
    STD_TORCH_CHECK(rows == n && o.values.numel() == entries, name, ": operands must have ", n,
                    " rows, and a value for each entry");
    if (form != kRowNumbers && !list.empty())
      STD_TORCH_CHECK(
          (o.matrix ? o.matrix->idx : o.triangle->idx).scalar_type() == list[0].matrix->idx.scalar_type(),
          name, ": operands must have one index type");
    list.push_back(std::move(o));
    STD_TORCH_CHECK(list[0].matrix, name, ": the first operand must be a matrix");
  }
  STD_TORCH_CHECK(!list.empty() && at == tensors.size(), name, ": forms must take all tensors");
  return list;
}

template <class T>
struct Tape {
  T* kept = nullptr;  // or nothing is kept
  double* numbers = nullptr;
  std::vector<int64_t> starts;  // of the stacks, in vectors
  bool backward = false;        // from the last iteration to the first, of an adjoint
  const T* read = nullptr;
  const double* known = nullptr;
  std::vector<int64_t> read_starts;
  int64_t first = 0, lowest = 0;  // the numbers of its first and its last iteration
};

// The first vector of each stack, and the number of all.
std::vector<int64_t> starts_of(const std::vector<int64_t>& before, int64_t iterations) {
  std::vector<int64_t> starts{0};
  for (const int64_t count : before) starts.push_back(starts.back() + count + iterations);
  return starts;
}

template <class T, class I>
class Machine {
 public:
  Machine(const Program& program_, const std::vector<Operand>& operands_, const std::vector<Tensor>& vectors,
          T* memory, double* numbers, const Tape<T>& tape_)
      : program(program_),
        tape(tape_),
        operands(operands_),
        S(*operands_[0].matrix),
        n(vectors[0].size(0)),
        k(vectors[0].size(1)),
        q(numbers),
        own(operands_.size()) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const T* values = data<T>(operands[i].values);
      const std::optional<Structure>& matrix = operands[i].matrix;
      views.push_back(matrix ? matrix->template view<T, I>(values) : CsrView<T, I>{});
      if (!matrix || !matrix->perm) continue;
      own[i] = transposed_values<T, I>(*matrix, values);
      views[i] = {data<I>(matrix->ptr), data<I>(matrix->idx), nullptr, own[i].data()};
    }
    const int64_t pool = program.temporaries + program.states;
    for (int64_t i = 0; i < pool; ++i) places.push_back(memory + i * n * k);
    for (const Tensor& t : vectors) given.push_back(const_cast<T*>(data<T>(t)));  // never written
    first_numbers.assign(q, q + program.registers * k);
    for (size_t s = 0; tape.kept && s < program.kept.size(); ++s)
      for (size_t j = 0; j < program.kept[s].before.size(); ++j)
        std::copy_n(given[program.kept[s].before[j]], n * k, tape.kept + (tape.starts[s] + j) * n * k);
    const I* table = data<I>(S.blocks);
    chunks.push_back(0);
    for (int64_t b = 1; b <= S.n_blocks(); ++b) {
      const int64_t rows = table[2 * b] - table[2 * chunks.back()];
      if (rows * k >= kChunk || b == S.n_blocks()) chunks.push_back(b), longest = std::max(longest, rows);
    }
    scratch.resize(program.scratch * longest * k);
  }

  int64_t run(int64_t iterations, T* norms) {
    begin();
    int64_t ran = iterate(iterations, norms);
    if (ran < 0) {  // again, without the iteration that does not count
      begin();
      iterate(ran = -1 - ran, norms);
    }
    std::fill(norms + ran * k, norms + iterations * k, T(0));
    return ran;
  }
  const T* state(int64_t i) const { return base[i]; }

 private:
  void begin() {
    std::copy(first_numbers.begin(), first_numbers.end(), q);
    base = given, where.assign(base.size(), kGiven);
    for (int64_t i = 0; i < program.temporaries; ++i) base.push_back(places[i]), where.push_back(i);
    for (const int64_t i : program.in_place) {
      base[i] = places[where[i] = program.temporaries + i];
      std::copy_n(given[i], n * k, base[i]);
    }
  }

  // How many iterations ran. -1 - so many: another one has changed the state.
  int64_t iterate(int64_t iterations, T* norms) {
    int64_t ran = 0;
    for (; ran < iterations;) {
      move_tape(ran);
      evaluate(program.before);
      for (const Pass& pass : program.passes) run_pass(pass);
      if (program.doubt >= 0 && any(program.doubt)) {
        for (const Pass& pass : program.check) run_pass(pass);
        bool lost = false;
        for (int64_t c = 0; c < k; ++c) lost |= now(program.doubt)[c] != 0 && now(program.lost)[c] != 0;
        if (lost) return undone(ran);
      }
      if (!all(program.commit)) return undone(ran);
      for (int64_t c = 0; c < k; ++c) norms[ran * k + c] = static_cast<T>(now(program.norm)[c]);
      if (tape.numbers) std::copy_n(q, program.registers * k, tape.numbers + ran * program.registers * k);
      ++ran;
      advance();
      if (any(program.stop)) break;
    }
    return ran;
  }
  int64_t undone(int64_t ran) const { return program.in_place.empty() ? ran : -1 - ran; }

  static constexpr int64_t kGiven = -1;    // where a vector is that has none of the places
  static constexpr int64_t kChunk = 1024;  // numbers of a vector: what a pass reads stays in the first cache
  const Program& program;
  const Tape<T>& tape;
  const std::vector<Operand>& operands;
  const Structure& S;  // of the first one, A
  const int64_t n, k;
  double* q;
  std::vector<CsrView<T, I>> views;
  std::vector<std::vector<T>> own;  // values of transposes
  std::vector<T> coefficients, scratch;
  std::vector<T*> places, given, base;
  std::vector<int64_t> where, chunks;
  std::vector<double> moved, first_numbers;
  int64_t longest = 0;
  Sums<T> sums;
  const Kernels<T, I>& table = kernels().get<T, I>();

  double* now(int64_t i) const { return q + i * k; }
  bool any(int64_t i) const {
    return std::any_of(now(i), now(i) + k, [](double t) { return t != 0; });
  }
  bool all(int64_t i) const {
    return std::all_of(now(i), now(i) + k, [](double t) { return t != 0; });
  }

  void evaluate(const std::vector<NumberOp>& ops) {
    for (const NumberOp& o : ops)
      for (int64_t c = 0; c < k; ++c) {
        const double a = now(o.a)[c], b = now(o.b)[c];
        double& out = now(o.out)[c];
        switch (o.kind) {
          case kAdd: out = a + b; break;
          case kSub: out = a - b; break;
          case kMul: out = a * b; break;
          case kDiv: out = a / b; break;
          case kSqrt: out = std::sqrt(a); break;
          case kMax: out = a > b || a != a ? a : b; break;
          case kLess: out = a < b; break;
          case kAtMost: out = a <= b; break;
          case kEqual: out = a == b; break;
          case kWhere: out = a != 0 ? b : now(o.c)[c]; break;
          default: out = std::abs(a);
        }
      }
  }

  // A's rows are multiplied chunk by chunk, with the instructions that read the result.
  bool of_A(const Lead& lead) const { return lead.kind == kProduct && lead.operand == 0; }
  void multiply(const Lead& lead) {
    const Structure& B = *operands[lead.operand].matrix;
    parallel_blocks<I>(B, k, [&](int64_t b0, int64_t b1) {
      table.spmm(views[lead.operand], B.row_blocks<I>(), b0, b1, base[lead.in], k, base[lead.out], false);
    });
  }
  void solve(const Lead& lead) {
    const TriangularStructure& L = *operands[lead.operand].triangle;
    const T* values = data<T>(operands[lead.operand].values);
    if (n * k == 0 || triangular_solve<T, I>(L, values, 0, base[lead.in], 0, base[lead.out], 1, k)) return;
    T value = 0;
    const int64_t row = zero_on_diagonal<T, I>(L, values, value);
    STD_TORCH_CHECK(false, "csr_program: cannot divide by the diagonal of the factor: row ", row, " has ",
                    value);
  }

  void run_pass(const Pass& pass) {
    int64_t products = 0;
    for (const Lead& lead : pass.leads) {
      if (of_A(lead))
        ++products;
      else
        lead.kind == kProduct ? multiply(lead) : solve(lead);
    }
    constexpr int64_t period = kPeriod<T>;
    coefficients.resize(pass.ops.size() * kTerms * period);
    T* to = coefficients.data();
    for (const VectorOp& op : pass.ops)
      for (int64_t t = 0; op.kind == kCombine && t < op.count; ++t, to += period)
        for (int64_t e = 0; e < period; ++e) to[e] = static_cast<T>(now(op.a[t])[e % k]);
    const int64_t count = static_cast<int64_t>(chunks.size()) - 1, s = pass.sums.size();
    T* parts = sums.room(count, s * k);
    const int64_t work = products * (S.nnz() + n) * k + static_cast<int64_t>(pass.ops.size()) * n * k;
    const auto run = [&](int64_t c0, int64_t c1, T* room) {
      for (int64_t c = c0; c < c1; ++c) run_chunk(pass, c, room, parts + c * s * k);
    };
    if (work < 2 * kGrain || threads_here() == 1)
      run(0, count, scratch.data());
    else
      parallel_for(0, count, std::max<int64_t>(kGrain * count / work, 1), [&](int64_t c0, int64_t c1) {
        std::vector<T> room(scratch.size());
        run(c0, c1, room.data());
      });
    for (int64_t i = 0; i < s; ++i)
      for (int64_t c = 0; c < k; ++c) now(pass.sums[i])[c] = sums.total(count, s * k, i * k + c);
    evaluate(pass.numbers);
  }

  void run_chunk(const Pass& pass, int64_t chunk, T* room, T* sum) {
    const int64_t b0 = chunks[chunk], b1 = chunks[chunk + 1];
    const I* blocks = data<I>(S.blocks);
    const int64_t r0 = blocks[2 * b0], rows = blocks[2 * b1] - r0, size = rows * k;
    const auto at = [&](int64_t v) {
      const auto slots = static_cast<int64_t>(base.size());
      return v < slots ? base[v] + r0 * k : room + (v - slots) * longest * k;
    };
    for (const Lead& lead : pass.leads)
      if (of_A(lead))
        table.spmm(views[0], S.row_blocks<I>(), b0, b1, base[lead.in], k, base[lead.out], false);
    const T* a = coefficients.data();
    for (const VectorOp& op : pass.ops) {
      if (op.kind == kCombine) {
        Combination<T> c{at(op.out), op.count, {}, a, op.square >= 0 ? sum : nullptr};
        for (int64_t t = 0; t < op.count; ++t) c.v[t] = at(op.v[t]);
        table.combine_vectors(c, size, k);
        a += op.count * kPeriod<T>;
        if (op.square >= 0) sum += k;
      } else if (op.kind == kScaleRows) {
        table.scale_rows(data<T>(operands[op.a[0]].values) + r0, at(op.v[0]), rows, k, at(op.out));
      } else {
        if (op.kind == kDot)
          table.column_dots(at(op.v[0]), at(op.v[1]), rows, k, sum);
        else
          table.absolute_dots(at(op.v[0]), at(op.v[1]), size, k, sum);
        sum += k;
      }
    }
  }

  // Where this iteration reads and keeps vectors, and the numbers that it reads.
  void move_tape(int64_t iteration) {
    const int64_t number = tape.backward ? tape.first - iteration : iteration;
    for (size_t s = 0; tape.kept && s < program.kept.size(); ++s) {
      const Stack& stack = program.kept[s];
      const int64_t row = tape.starts[s] + stack.before.size() + number - tape.lowest;
      base[stack.vector] = tape.kept + row * n * k, where[stack.vector] = kGiven;
    }
    for (const Reading& r : program.readings) {
      const int64_t row = tape.read_starts[r.stack] + program.read[r.stack] - 1 + number + r.shift;
      base[r.input] = const_cast<T*>(tape.read + row * n * k);
    }
    if (tape.backward)
      std::copy_n(tape.known + number * program.known * k, program.known * k, now(program.first_known));
  }

  // The state of the next iteration: vectors change places, numbers are copied.
  void advance() {
    const std::vector<int64_t> before = where;
    std::vector<char> used(places.size(), 0);
    for (int64_t i = 0; i < program.states; ++i) where[i] = before[program.ends[i]];
    for (int64_t i = 0; i < program.inputs; ++i)
      if (where[i] >= 0) used[where[i]] = 1;
    int64_t free = 0;
    const std::vector<T*> pointers = base;
    for (int64_t i = 0; i < program.states; ++i) base[i] = pointers[program.ends[i]];
    for (int64_t i = program.inputs; i < program.inputs + program.temporaries; ++i, ++free) {
      while (used[free]) ++free;
      where[i] = free, base[i] = places[free];
    }
    moved.clear();
    for (const auto& [from, to] : program.copies) moved.insert(moved.end(), now(from), now(from) + k);
    for (size_t i = 0; i < program.copies.size(); ++i)
      std::copy_n(moved.data() + i * k, k, now(program.copies[i].second));
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_program(
    const std::vector<Tensor>& tensors, const std::vector<int64_t>& forms, const Tensor& code_,
    const std::vector<Tensor>& vectors_, const Tensor& numbers_, const std::vector<Tensor>& tape_,
    int64_t first, int64_t iterations, bool keep) {
  const char* name = "csr_program";
  const Tensor numbers_in = dense(numbers_), code = dense(code_);
  STD_TORCH_CHECK(code.scalar_type() == ScalarType::Long && code.is_cpu(), name, ": code must be int64");
  const Program program(name, code, forms);
  STD_TORCH_CHECK(static_cast<int64_t>(vectors_.size()) == program.inputs && program.inputs > 0, name,
                  ": there must be ", program.inputs, " vectors, got ", vectors_.size());
  std::vector<Tensor> vectors;
  for (const Tensor& t : vectors_) {
    vectors.push_back(dense(t));
    check_device(name, vectors[0], {&vectors.back(), &numbers_in});
    STD_TORCH_CHECK(t.scalar_type() == vectors[0].scalar_type() && t.dim() == 2 &&
                        t.size(0) == vectors[0].size(0) && t.size(1) == vectors[0].size(1),
                    name, ": vectors must be (n, k), of one dtype");
  }
  const Tensor& like = vectors[0];
  const int64_t n = like.size(0), k = like.size(1);
  const std::vector<Operand> operands = operands_of(name, tensors, forms, like);
  STD_TORCH_CHECK(k == 1 || k == 2 || k == 4 || k == 8, name, ": k must be 1, 2, 4 or 8, got ", k);
  STD_TORCH_CHECK(numbers_in.scalar_type() == ScalarType::Double && numbers_in.dim() == 2 &&
                      numbers_in.size(0) == program.registers && numbers_in.size(1) == k,
                  name, ": numbers must be (", program.registers, ", k), float64");
  STD_TORCH_CHECK(iterations >= 0 && iterations <= (int64_t{1} << 31), name,
                  ": iterations must be 0 ... 2^31, got ", iterations);
  std::vector<int64_t> before;
  for (const Stack& stack : program.kept) before.push_back(stack.before.size());
  const std::vector<int64_t> starts = starts_of(before, keep ? iterations : 0);
  STD_TORCH_CHECK(tape_.size() == (program.known == 0 && program.read.empty() ? 0 : 2), name,
                  ": a tape is two tensors, for a program that reads one");
  std::vector<int64_t> read_starts;
  std::vector<Tensor> tape_in;
  if (!tape_.empty()) {
    for (const Tensor& t : tape_) tape_in.push_back(dense(t)), check_device(name, like, {&tape_in.back()});
    const Tensor &vectors_in = tape_in[0], &known = tape_in[1];
    STD_TORCH_CHECK(known.scalar_type() == ScalarType::Double && known.dim() == 3 &&
                        known.size(1) == program.known && known.size(2) == k,
                    name, ": the numbers of a tape must be (iterations, ", program.known, ", k), float64");
    read_starts = starts_of(program.read, known.size(0));
    STD_TORCH_CHECK(vectors_in.scalar_type() == like.scalar_type() && vectors_in.dim() == 3 &&
                        vectors_in.size(0) == read_starts.back() && vectors_in.size(1) == n &&
                        vectors_in.size(2) == k,
                    name, ": a tape must be (", read_starts.back(), ", n, k)");
    STD_TORCH_CHECK(first < known.size(0) && first + 1 >= iterations, name, ": the tape has no ", iterations,
                    " iterations up to number ", first);
  }
  const Tensor memory = new_empty(like, Size{program.temporaries + program.states, n, k});
  Tensor states = new_empty(like, Size{program.states, n, k}),
         numbers = new_empty(numbers_in, sizes_of(numbers_in)), norms = new_empty(like, Size{iterations, k}),
         ran = new_empty(like, Size{1}, aoti_torch_dtype_int64()),
         kept = new_empty(like, Size{keep ? starts.back() : 0, n, k}),
         known = new_empty(numbers_in, Size{keep ? iterations : 0, program.registers, k});
  if (bytes_of(kept) >= Buffers::kHuge) prefer_huge_pages(kept.data_ptr(), bytes_of(kept));
  std::memcpy(numbers.data_ptr(), numbers_in.data_ptr(), bytes_of(numbers));
  dispatch(name, like, operands[0].matrix->idx, [&]<class T, class I>() {
    Tape<T> tape;
    if (keep)
      tape.kept = mutable_data<T>(kept), tape.numbers = mutable_data<double>(known), tape.starts = starts;
    if (!tape_in.empty()) {
      tape.backward = true, tape.read = data<T>(tape_in[0]), tape.known = data<double>(tape_in[1]),
      tape.read_starts = read_starts;
      tape.first = first, tape.lowest = first + 1 - iterations;
    }
    Machine<T, I> machine(program, operands, vectors, mutable_data<T>(memory), mutable_data<double>(numbers),
                          tape);
    *mutable_data<int64_t>(ran) = machine.run(iterations, mutable_data<T>(norms));
    for (int64_t i = 0; i < program.states; ++i)
      std::copy_n(machine.state(i), n * k, mutable_data<T>(states) + i * n * k);
  });
  return {states, numbers, norms, ran, kept, known};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_program", TORCH_BOX(&learnsolve::csr_program)); }
