// The compiled engine's twin: the same table of levels, interpreted in C++ on the same tabular model.
//
//     twin DATA returns|values STATE ACTION COUNT CHUNKS THREADS SEED
//
// DATA is a file of doubles written by engines.py. COUNT samples are drawn in each of CHUNKS chunks, each from a stream
// of its own, on THREADS threads. Prints: seconds, simulator calls, samples, sum and sum of squares of the samples.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

enum Kind { CONSTANT, PLUG_IN, FIRST, SECOND };

struct Level {
    int kind, samples, reference, linear, quadratic, pairs;
    bool by_policy;
    double shift, low, high;
};

struct Outcome {  // of one successor of a state and an action
    double reward;
    int32_t successor;
    bool end;
};

struct Data {
    int states, actions, branches, columns;
    bool bernoulli, state_weights;
    double discount, temperature;
    std::vector<double> cumulative;  // [S, K, B]
    std::vector<Outcome> outcomes;   // [S, K, B]
    std::vector<double> shifts;      // [J, K]
    std::vector<double> weights;     // [S or 1, J]
    std::vector<double> reference;   // [K], of the root
    std::vector<Level> levels;
};

struct Stream {  // xoshiro256++ (Blackman and Vigna, 2021)
    uint64_t s0, s1, s2, s3;
    uint64_t calls = 0;

    explicit Stream(uint64_t seed) {
        auto split_mix = [&seed]() {
            uint64_t z = (seed += 0x9e3779b97f4a7c15);
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
            z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
            return z ^ (z >> 31);
        };
        s0 = split_mix(), s1 = split_mix(), s2 = split_mix(), s3 = split_mix();
    }

    static uint64_t rotate(uint64_t word, int bits) { return (word << bits) | (word >> (64 - bits)); }

    double uniform() {
        uint64_t result = rotate(s0 + s3, 23) + s0, shifted = s1 << 17;
        s2 ^= s0, s3 ^= s1, s1 ^= s2, s0 ^= s3, s2 ^= shifted;
        s3 = rotate(s3, 45);
        return static_cast<double>(static_cast<int64_t>(result >> 11)) * 0x1.0p-53;
    }
};

struct Sampler {
    const Data& data;
    Stream stream;
    std::vector<double> q, local;  // [L, K] and [L, J, K]

    Sampler(const Data& data, uint64_t seed)
        : data(data), stream(seed), q(data.levels.size() * data.actions),
          local(data.levels.size() * data.actions * data.columns) {}

    const Outcome& draw(int state, int action, double& reward) {
        stream.calls += 1;
        size_t row = (static_cast<size_t>(state) * data.actions + action) * data.branches;
        const double* cumulative = &data.cumulative[row];
        double level = stream.uniform();
        int branch = 0;
        while (level >= cumulative[branch]) branch += 1;
        const Outcome& outcome = data.outcomes[row + branch];
        reward = outcome.reward;
        if (data.bernoulli) reward = stream.uniform() < reward ? 1.0 : 0.0;
        return outcome;
    }

    template <bool bernoulli>
    double constant_returns(int state, int action, int count, double tail) {
        size_t row = (static_cast<size_t>(state) * data.actions + action) * data.branches;
        const double* cumulative = &data.cumulative[row];
        const Outcome* outcomes = &data.outcomes[row];
        Stream here = stream;
        double total = 0.0;
        for (int sample = 0; sample < count; sample++) {
            double level = here.uniform();
            int branch = 0;
            while (level >= cumulative[branch]) branch += 1;
            double reward = outcomes[branch].reward;
            if (bernoulli) reward = here.uniform() < reward ? 1.0 : 0.0;
            total += outcomes[branch].end ? reward : reward + tail;
        }
        here.calls += count;
        stream = here;
        return total;
    }

    double backup(const double* around, int state, double* softmaxes) {
        int actions = data.actions;
        if (data.temperature == 0.0) return *std::max_element(around, around + actions);
        const double* weights = &data.weights[data.state_weights ? static_cast<size_t>(state) * data.columns : 0];
        double inverse = 1.0 / data.temperature, value = 0.0;
        for (int j = 0; j < data.columns; j++) {
            const double* shifts = &data.shifts[j * actions];
            double* softmax = &softmaxes[j * actions];
            double top = around[0] - shifts[0];
            for (int i = 1; i < actions; i++) top = std::max(top, around[i] - shifts[i]);
            double total = 0.0;
            for (int i = 0; i < actions; i++) {
                softmax[i] = std::exp((around[i] - shifts[i] - top) * inverse);
                total += softmax[i];
            }
            double normaliser = 1.0 / total;
            for (int i = 0; i < actions; i++) softmax[i] *= normaliser;
            value += weights[j] * (top + data.temperature * std::log(total));
        }
        return value;
    }

    int categorical(const double* probabilities, int size) {
        double level = stream.uniform();
        int i = 0;
        while (i < size - 1 && level >= probabilities[i]) level -= probabilities[i++];
        return i;
    }

    int column(int state) {
        if (data.columns == 1) return 0;
        return categorical(&data.weights[data.state_weights ? static_cast<size_t>(state) * data.columns : 0],
                           data.columns);
    }

    double step(int child, int state, int action, int depth) {
        double reward;
        const Outcome& outcome = draw(state, action, reward);
        return outcome.end ? reward : reward + data.discount * sample(child, outcome.successor, depth + 1);
    }

    double sample(int row, int state, int depth, bool given = false) {
        const Level& level = data.levels[row];
        if (level.kind == CONSTANT) return level.shift;
        int actions = data.actions;
        double* around = &q[static_cast<size_t>(depth) * actions];
        double* softmaxes = &local[static_cast<size_t>(depth) * actions * data.columns];
        if (!given) {
            std::fill(around, around + actions, 0.0);
            if (level.samples > 0) {
                const Level& child = data.levels[level.reference];
                for (int action = 0; action < actions; action++) {
                    double total = 0.0;
                    if (child.kind == CONSTANT) {
                        double tail = data.discount * child.shift;
                        total = data.bernoulli ? constant_returns<true>(state, action, level.samples, tail)
                                               : constant_returns<false>(state, action, level.samples, tail);
                    } else {
                        for (int i = 0; i < level.samples; i++) total += step(level.reference, state, action, depth);
                    }
                    around[action] = std::min(std::max(total / level.samples, level.low), level.high);
                }
            }
        }
        double result = backup(around, state, softmaxes) + level.shift;
        if (level.linear >= 0) {
            int action = categorical(&softmaxes[column(state) * actions], actions);
            result += step(level.linear, state, action, depth);
            if (!level.by_policy) {
                result -= around[action];
            } else {
                const double* weights =
                    &data.weights[data.state_weights ? static_cast<size_t>(state) * data.columns : 0];
                for (int j = 0; j < data.columns; j++)
                    for (int i = 0; i < actions; i++) result -= weights[j] * softmaxes[j * actions + i] * around[i];
            }
        }
        if (level.quadratic >= 0) {
            const double* softmax = &softmaxes[column(state) * actions];
            int first = categorical(softmax, actions), second = categorical(softmax, actions);
            if (first != second) {
                double gap = around[first] - around[second], total = 0.0, squares = 0.0;
                for (int pair = 0; pair < level.pairs; pair++) {
                    double one = step(level.quadratic, state, first, depth);
                    double difference = one - step(level.quadratic, state, second, depth) - gap;
                    total += difference;
                    squares += difference * difference;
                }
                double pairs = level.pairs;
                result += (total * total - squares) / (pairs * (pairs - 1.0) * 4.0 * data.temperature);
            }
        }
        return std::min(std::max(result, level.low), level.high);
    }
};

static Data read(const char* path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<double> numbers(bytes.size() / sizeof(double));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
    size_t place = 0;
    auto next = [&]() { return numbers.at(place++); };
    auto array = [&](size_t size) {
        std::vector<double> result(size);
        for (double& number : result) number = next();
        return result;
    };
    Data data;
    data.states = next(), data.actions = next(), data.branches = next(), data.columns = next();
    size_t levels = next(), weight_rows = next();
    data.bernoulli = next(), data.discount = next(), data.temperature = next();
    data.state_weights = weight_rows > 1;
    size_t size = static_cast<size_t>(data.states) * data.actions * data.branches;
    data.cumulative = array(size);
    std::vector<double> successors = array(size), rewards = array(size), ends = array(size);
    for (size_t i = 0; i < size; i++)
        data.outcomes.push_back({rewards[i], static_cast<int32_t>(successors[i]), ends[i] != 0.0});
    data.shifts = array(static_cast<size_t>(data.columns) * data.actions);
    data.weights = array(weight_rows * data.columns);
    data.reference = array(data.actions);
    for (size_t row = 0; row < levels; row++) {
        Level level;
        level.kind = next(), level.samples = next(), level.reference = next(), level.linear = next();
        level.quadratic = next(), level.pairs = next(), level.by_policy = next();
        level.shift = next(), level.low = next(), level.high = next();
        data.levels.push_back(level);
    }
    if (place != numbers.size()) throw std::runtime_error("the file of data has the wrong length");
    return data;
}

int main(int count, char** words) {
    if (count != 9) return 2;
    Data data = read(words[1]);
    bool returns = std::strcmp(words[2], "returns") == 0;
    int state = std::atoi(words[3]), action = std::atoi(words[4]);
    long samples = std::atol(words[5]);
    int chunks = std::atoi(words[6]), threads = std::atoi(words[7]);
    uint64_t seed = std::atoll(words[8]);
    std::vector<double> totals(chunks), squares(chunks);
    std::vector<uint64_t> calls(chunks);
    std::atomic<int> next_chunk{0};

    auto work = [&]() {
        for (int chunk = next_chunk++; chunk < chunks; chunk = next_chunk++) {
            Sampler sampler(data, seed * 1000003 + chunk);
            int root = static_cast<int>(data.levels.size()) - 1;
            std::copy(data.reference.begin(), data.reference.end(), sampler.q.begin());
            double total = 0.0, square = 0.0;
            for (long i = 0; i < samples; i++) {
                double value = returns ? sampler.step(data.levels[root].reference, state, action, -1)
                                       : sampler.sample(root, state, 0, true);
                total += value;
                square += value * value;
            }
            totals[chunk] = total, squares[chunk] = square, calls[chunk] = sampler.stream.calls;
        }
    };

    auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> pool;
    for (int thread = 1; thread < threads; thread++) pool.emplace_back(work);
    work();
    for (std::thread& thread : pool) thread.join();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    double total = 0.0, square = 0.0;
    uint64_t all = 0;
    for (int chunk = 0; chunk < chunks; chunk++) total += totals[chunk], square += squares[chunk], all += calls[chunk];
    std::printf("%.9f %llu %ld %.17g %.17g\n", seconds, static_cast<unsigned long long>(all), samples * chunks, total,
                square);
}
