// The twin of the compiled chains: the same samples in C++ on the same tabular model under the same policy.
//
//     chain_twin DATA values|corrections STATE COUNT PAIRS HORIZON CHUNKS SEED
//
// DATA is a file of doubles written by chains.py. COUNT samples are drawn in each of CHUNKS chunks, each from a stream of
// its own. Prints: seconds of the processor's time, simulator calls, samples, sum and sum of squares of the samples.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "stream.h"

struct Outcome {
    double chance, reward;
    int64_t successor;  // -1 where the episode ends
};

struct Entry {  // a column of Walker's aliases: what it keeps, and what its alias is
    double limit, gains[2];
    uint32_t rows[2];
};

struct Data {
    int states, actions, columns, outcomes;
    bool state_weights;
    double discount, temperature, tail;
    std::vector<Outcome> table;  // [S, K, B]
    std::vector<double> policy, advantages, q;  // [S, K]
    std::vector<double> shifts, weights;        // [J, K] and [S or 1, J]
    std::vector<Entry> entries;                 // [S + 1, width]
    size_t width;
    uint32_t end;  // where the row of ended chains begins

    const Outcome* outcomes_of(int state, int action) const {
        return &table[(size_t(state) * actions + action) * outcomes];
    }
};

constexpr int LANES = 64;

struct Sampler {
    const Data& data;
    Stream stream;
    uint32_t rows[LANES];
    int owners[LANES];
    double sums[LANES];
    std::vector<double> odds;  // running sums of one column, [K]

    Sampler(const Data& data, uint64_t seed) : data(data), stream(seed), odds(data.actions) {}

    uint32_t moved(Stream& here, uint32_t row, double width, double& gain) const {
        double place = static_cast<double>(static_cast<int64_t>(here.word() >> 11)) * width;
        const Entry& entry = data.entries[row + static_cast<size_t>(static_cast<int64_t>(place))];
        bool leaves = place >= entry.limit;  // an index and not a branch, which would be mispredicted
        gain = entry.gains[leaves];
        return entry.rows[leaves];
    }

    void advance(int left, double scale, int horizon) {
        Stream here = stream;
        double width = data.width * 0x1.0p-53;
        for (int step = 0; step < horizon && left > 0; step++) {
            here.calls += left;
            for (int lane = 0; lane < left;) {
                double gain;
                uint32_t row = moved(here, rows[lane], width, gain);
                sums[owners[lane]] += scale * gain;
                if (row == data.end) {
                    left--;
                    rows[lane] = rows[left], owners[lane] = owners[left];
                } else {
                    rows[lane++] = row;
                }
            }
            scale *= data.discount;
        }
        stream = here;
        for (int lane = 0; lane < left; lane++) sums[owners[lane]] += scale * data.tail;
    }

    void values(int state, int size, int horizon) {
        for (int lane = 0; lane < size; lane++) rows[lane] = state * data.width, owners[lane] = lane, sums[lane] = 0.0;
        advance(size, 1.0, horizon);
    }

    void returns(int state, int even, int odd, int size, int horizon) {
        int going_on = 0;
        stream.calls += size;
        for (int lane = 0; lane < size; lane++) {
            const Outcome* outcome = data.outcomes_of(state, lane & 1 ? odd : even);
            const Outcome* last = outcome + data.outcomes - 1;
            for (double level = stream.uniform(); outcome < last && level >= outcome->chance; outcome++)
                level -= outcome->chance;
            sums[lane] = outcome->reward;
            if (outcome->successor >= 0) rows[going_on] = outcome->successor * data.width, owners[going_on++] = lane;
        }
        advance(going_on, data.discount, horizon - 1);
    }

    int drawn(const double* shifts, const double* q) {
        double top = -INFINITY, total = 0.0;
        for (int i = 0; i < data.actions; i++) top = std::max(top, q[i] - shifts[i]);
        for (int i = 0; i < data.actions; i++)
            odds[i] = total += std::exp((q[i] - shifts[i] - top) / data.temperature);
        double level = stream.uniform() * total;
        int action = 0;
        for (int i = 0; i < data.actions - 1; i++) action += level >= odds[i];
        return action;
    }

    double correction(int state, int pairs, int horizon) {
        double rate = std::log(data.discount), weight = std::expm1(horizon * rate) / (data.discount - 1.0);
        int stop = std::min(int(std::log1p(std::expm1(horizon * rate) * stream.uniform()) / rate), horizon - 1);
        uint32_t row = state * data.width;
        double gain, width = data.width * 0x1.0p-53;
        for (int step = 0; step < stop; step++) {
            row = moved(stream, row, width, gain);
            stream.calls++;
            if (row == data.end) return 0.0;
        }
        state = row / data.width;
        const double* weights = &data.weights[data.state_weights ? size_t(state) * data.columns : 0];
        int j = 0;
        for (double level = stream.uniform(); j < data.columns - 1 && level >= weights[j]; j++) level -= weights[j];
        const double *shifts = &data.shifts[size_t(j) * data.actions], *q = &data.q[size_t(state) * data.actions];
        int first = drawn(shifts, q), second = drawn(shifts, q);
        if (first == second) return 0.0;
        double total = 0.0, squares = 0.0;
        for (int start = 0; start < 2 * pairs; start += LANES) {
            int size = std::min(LANES, 2 * pairs - start);
            returns(state, first, second, size, horizon);
            for (int lane = 0; lane < size; lane += 2) {
                double difference = sums[lane] - sums[lane + 1] - (q[first] - q[second]);
                total += difference, squares += difference * difference;
            }
        }
        return weight * (total * total - squares) / (double(pairs) * (pairs - 1) * 4.0 * data.temperature);
    }
};

static void fill_row(Data& data, int state) {
    std::vector<double> chances, gains;
    std::vector<uint32_t> rows;
    for (int action = 0; state < data.states && action < data.actions; action++) {
        size_t pair = size_t(state) * data.actions + action;
        for (int b = 0; b < data.outcomes; b++) {
            const Outcome& outcome = data.outcomes_of(state, action)[b];
            if (outcome.chance * data.policy[pair] == 0.0) continue;
            chances.push_back(outcome.chance * data.policy[pair] * data.width);
            gains.push_back(outcome.reward + data.advantages[pair]);
            rows.push_back(outcome.successor < 0 ? data.end : outcome.successor * data.width);
        }
    }
    if (chances.empty()) chances.push_back(data.width);
    chances.resize(data.width), gains.resize(data.width), rows.resize(data.width, data.end);
    std::vector<size_t> poor, rich;
    for (size_t i = 0; i < data.width; i++) (chances[i] < 1.0 ? poor : rich).push_back(i);
    Entry* entries = &data.entries[state * data.width];
    for (size_t i = 0; i < data.width; i++) entries[i] = {i + 1.0, {gains[i], gains[i]}, {rows[i], rows[i]}};
    while (!poor.empty() && !rich.empty()) {
        size_t taker = poor.back(), giver = rich.back();
        poor.pop_back();
        entries[taker] = {taker + chances[taker], {gains[taker], gains[giver]}, {rows[taker], rows[giver]}};
        chances[giver] -= 1.0 - chances[taker];
        if (chances[giver] < 1.0) rich.pop_back(), poor.push_back(giver);
    }
}

static Data read(const char* path) {
    Numbers numbers(path);
    auto next = [&]() { return numbers.next(); };
    auto array = [&](size_t size) { return numbers.array(size); };
    Data data;
    data.states = next(), data.actions = next(), data.outcomes = next(), data.columns = next();
    size_t weight_rows = next();
    data.state_weights = weight_rows > 1;
    data.discount = next(), data.temperature = next(), data.tail = next();
    size_t pairs = size_t(data.states) * data.actions, size = pairs * data.outcomes;
    std::vector<double> chances = array(size), rewards = array(size), successors = array(size);
    for (size_t i = 0; i < size; i++) data.table.push_back({chances[i], rewards[i], int64_t(successors[i])});
    data.policy = array(pairs), data.advantages = array(pairs), data.q = array(pairs);
    data.shifts = array(size_t(data.columns) * data.actions), data.weights = array(weight_rows * data.columns);
    numbers.end();
    data.width = size_t(data.actions) * data.outcomes;
    data.end = data.states * data.width;
    data.entries.resize((data.states + 1) * data.width);
    for (int state = 0; state <= data.states; state++) fill_row(data, state);
    return data;
}

int main(int count, char** words) {
    if (count != 9) return 2;
    Data data = read(words[1]);
    bool corrections = std::strcmp(words[2], "corrections") == 0;
    int state = std::atoi(words[3]), pairs = std::atoi(words[5]), horizon = std::atoi(words[6]);
    long samples = std::atol(words[4]);
    int chunks = std::atoi(words[7]);
    uint64_t seed = std::atoll(words[8]), calls = 0;
    double total = 0.0, squares = 0.0;
    std::clock_t start = std::clock();
    for (int chunk = 0; chunk < chunks; chunk++) {
        Sampler sampler(data, seed * 1000003 + chunk);
        for (long done = 0; done < samples;) {
            int size = corrections ? 1 : static_cast<int>(std::min<long>(LANES, samples - done));
            if (corrections)
                sampler.sums[0] = sampler.correction(state, pairs, horizon);
            else
                sampler.values(state, size, horizon);
            for (int lane = 0; lane < size; lane++)
                total += sampler.sums[lane], squares += sampler.sums[lane] * sampler.sums[lane];
            done += size;
        }
        calls += sampler.stream.calls;
    }
    double seconds = double(std::clock() - start) / CLOCKS_PER_SEC;
    std::printf("%.9f %llu %ld %.17g %.17g\n", seconds, static_cast<unsigned long long>(calls), samples * chunks, total,
                squares);
}
