// The compiled engine's twin: the same table of levels, interpreted in C++ on the same tabular model.
//
//     twin DATA returns|values STATE ACTION COUNT CHUNKS SEED
//
// DATA is a file of doubles that contest.py writes. COUNT samples are drawn in each of CHUNKS chunks, each
// from a stream of its own. Prints: seconds of the processor, simulator calls, samples, sum and sum of squares of the
// samples.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "stream.h"

enum Kind { CONSTANT, PLUG_IN, FIRST, SECOND };

struct Level {  // -1 where there is no child
    int kind, samples, reference, linear, quadratic, pairs;
    bool by_policy;
    double shift, low, high;
    int debias, rewards;
    double reward_share, block_share;  // 1 / rewards; blocks / samples
    double values[3], slopes[3];  // weights of each block's terms, in place of F of the whole: whole, halves, quarters
};

struct Outcome {  // a word w selects the first outcome of a pair with w <= threshold
    uint64_t threshold;
    double reward;
    int64_t successor;  // -1 - state where the episode ends
};

constexpr int UNROLLED = 4;  // outcomes of a pair are padded to a multiple of this
constexpr uint64_t LAST = ~uint64_t{0};

struct Data {
    int states, actions, width, columns;
    bool state_weights;
    double discount, temperature;
    std::vector<Outcome> outcomes;  // [S, K, width], the most probable first
    std::vector<double> shifts;     // [J, K]
    std::vector<double> weights;    // [S or 1, J]
    std::vector<double> reference;  // [K], of the root
    std::vector<Level> levels;

    const double* weights_at(int state) const { return &weights[state_weights ? size_t(state) * columns : 0]; }
};

struct Frame {  // a reference and its softmaxes
    std::vector<double> q, sums, soft_maxima;  // [K]; running sums of the odds, [J, K]; [J]
    std::vector<double> blocks;                // [6, K], means over the halves and the quarters of the returns

    explicit Frame(const Data& data)
        : q(data.actions),
          sums(size_t(data.columns) * data.actions),
          soft_maxima(data.columns),
          blocks(size_t(6) * data.actions) {}

    void fill(const Data& data) {  // the best action's odds are 1 and need no exponential
        int actions = data.actions;
        double temperature = data.temperature, inverse = 1.0 / temperature;
        for (int j = 0; j < data.columns; j++) {
            const double* shifts = &data.shifts[size_t(j) * actions];
            double* row = &sums[size_t(j) * actions];
            if (actions == 2 && temperature > 0.0) {
                double one = q[0] - shifts[0], two = q[1] - shifts[1];
                double odds = std::exp(-std::abs(one - two) * inverse);
                row[0] = one >= two ? 1.0 : odds;
                row[1] = 1.0 + odds;
                soft_maxima[j] = std::max(one, two) + temperature * std::log(1.0 + odds);
                continue;
            }
            int best = 0;
            double top = q[0] - shifts[0], total = 1.0;
            for (int i = 1; i < actions; i++) {
                double score = q[i] - shifts[i];
                best = score > top ? i : best;
                top = std::max(top, score);
            }
            if (temperature > 0.0) {
                row[best] = 1.0;
                for (int passed = 1, i = best; passed < actions; passed++) {
                    i = i == actions - 1 ? 0 : i + 1;
                    row[i] = std::exp((q[i] - shifts[i] - top) * inverse);
                }
                total = 0.0;
                for (int i = 0; i < actions; i++) row[i] = total += row[i];
            }
            soft_maxima[j] = top + temperature * std::log(total);
        }
    }

    double value(const Data& data, int state) const {
        const double* weights = data.weights_at(state);
        double value = 0.0;
        for (int j = 0; j < data.columns; j++) value += weights[j] * soft_maxima[j];
        return value;
    }

    struct Terms {
        double top, total, inner;  // the top score, the sum of the odds, and that of odds times q - sibling
    };

    static Terms block_terms(const double* q, const double* sibling, const double* shifts, int actions,
                             double inverse) {
        if (actions == 2) {
            double one = q[0] - shifts[0], two = q[1] - shifts[1];
            double odds = std::exp(-std::abs(one - two) * inverse);
            double first = q[0] - sibling[0], second = q[1] - sibling[1];
            return {std::max(one, two), 1.0 + odds, one > two ? first + odds * second : second + odds * first};
        }
        int best = 0;
        double top = q[0] - shifts[0];
        for (int i = 1; i < actions; i++) {
            double score = q[i] - shifts[i];
            best = score > top ? i : best;
            top = std::max(top, score);
        }
        Terms terms{top, 1.0, q[best] - sibling[best]};
        for (int passed = 1, i = best; passed < actions; passed++) {
            i = i == actions - 1 ? 0 : i + 1;
            double odds = std::exp((q[i] - shifts[i] - top) * inverse);
            terms.total += odds;
            terms.inner += odds * (q[i] - sibling[i]);
        }
        return terms;
    }

    double debiasing(const Data& data, int state, const Level& level) const {  // what the blocks add
        const double* weights = data.weights_at(state);
        int actions = data.actions;
        double value = 0.0, inverse = 1.0 / std::max(data.temperature, 1e-300);
        for (int j = 0; j < data.columns; j++) {
            const double* shifts = &data.shifts[size_t(j) * actions];
            const double* first = blocks.data();
            for (int k = 1; k <= level.debias; k++) {
                int count = 1 << k;
                double tops = 0.0, product = 1.0, slope = 0.0;
                for (int b = 0; b < count; b++) {
                    Terms terms = block_terms(first + b * actions, first + (b ^ 1) * actions, shifts, actions,
                                              inverse);
                    tops += terms.top;
                    product *= terms.total;
                    if (level.slopes[k] != 0.0) slope += terms.inner / terms.total;
                }
                double soft_maxima = tops + data.temperature * std::log(product);
                value += weights[j] * (level.values[k] * soft_maxima + level.slopes[k] * slope);
                first += count * actions;
            }
        }
        return value;
    }

    double policy_mean(const Data& data, int state) const {
        const double* weights = data.weights_at(state);
        double mean = 0.0;
        for (int j = 0; j < data.columns; j++) {
            double before = 0.0, inner = 0.0;
            for (int i = 0; i < data.actions; i++) {
                double sum = sums[size_t(j) * data.actions + i];
                inner += (sum - before) * q[i];
                before = sum;
            }
            mean += weights[j] * inner / before;
        }
        return mean;
    }
};

struct Sampler {
    const Data& data;
    Stream stream;
    Frame zero, given;
    std::vector<Frame> frames;  // one for each depth

    Sampler(const Data& data, uint64_t seed)
        : data(data), stream(seed), zero(data), given(data), frames(data.levels.size(), Frame(data)) {
        zero.fill(data);
        given.q = data.reference;
        given.fill(data);
    }

    static const Outcome& select(const Outcome* outcomes, int width, uint64_t word) {
        size_t entry = 0;
        for (int i = 0; i < width; i += UNROLLED) {
            entry += word > outcomes[i].threshold;
            entry += word > outcomes[i + 1].threshold;
            entry += word > outcomes[i + 2].threshold;
            entry += word > outcomes[i + 3].threshold;
        }
        return outcomes[entry];
    }

    const Outcome* outcomes(int state, int action) const {
        return &data.outcomes[(size_t(state) * data.actions + action) * data.width];
    }

    struct Drawn {
        double reward;  // the sum of all
        int going_on;
        int64_t successor;  // of the last of the returns
    };

    Drawn draws(int state, int action, int count, int rewards) {  // for returns that average a number of rewards
        const Outcome* first = outcomes(state, action);
        int width = data.width;
        Stream here = stream;
        Drawn drawn{0.0, 0, 0};
        for (int sample = 0; sample < count; sample++) {
            const Outcome& outcome = select(first, width, here.word());
            drawn.reward += outcome.reward;
            drawn.successor = outcome.successor;
            drawn.going_on += outcome.successor >= 0;
        }
        for (int rest = count * (rewards - 1); rest > 0; rest--) drawn.reward += select(first, width, here.word()).reward;
        here.calls += count * rewards;
        stream = here;
        return drawn;
    }

    double constant_returns(int state, int action, int count, const Level& child) {
        Drawn drawn = draws(state, action, count, child.rewards);
        return drawn.reward * child.reward_share + drawn.going_on * (data.discount * child.shift);
    }

    int column(int state) {
        if (data.columns == 1) return 0;
        const double* weights = data.weights_at(state);
        double level = stream.uniform();
        int j = 0;
        while (j < data.columns - 1 && level >= weights[j]) level -= weights[j++];
        return j;
    }

    int action(const Frame& frame, int column) {
        const double* sums = &frame.sums[size_t(column) * data.actions];
        double level = stream.uniform() * sums[data.actions - 1];
        int action = 0;
        for (int i = 0; i < data.actions - 1; i++) action += level >= sums[i];
        return action;
    }

    double step(int child, int state, int action, int depth) {
        const Level& level = data.levels[child];
        Drawn drawn = draws(state, action, 1, level.rewards);
        double reward = drawn.reward * level.reward_share;
        if (drawn.successor < 0) return reward;
        double future = level.kind == CONSTANT ? level.shift : sample(child, drawn.successor, depth + 1);
        return reward + data.discount * future;
    }

    void draw_reference(const Level& level, int state, int depth, Frame& frame) {
        const Level& child = data.levels[level.reference];
        int blocks = 1 << level.debias, size = level.samples >> level.debias, actions = data.actions;
        for (int action = 0; action < actions; action++) {
            double total = 0.0, half = 0.0;
            for (int block = 0; block < blocks; block++) {
                double part = 0.0;
                if (child.kind == CONSTANT) {
                    part = constant_returns(state, action, size, child);
                } else {
                    for (int i = 0; i < size; i++) part += step(level.reference, state, action, depth);
                }
                total += part;
                if (blocks > 1) {
                    part *= level.block_share;
                    frame.blocks[(blocks - 2 + block) * actions + action] = part;
                    if (blocks == 4 && block % 2 == 1) frame.blocks[block / 2 * actions + action] = half + 0.5 * part;
                    half = 0.5 * part;
                }
            }
            frame.q[action] = std::min(std::max(total / level.samples, level.low), level.high);
        }
        frame.fill(data);
    }

    double sample(int row, int state, int depth, bool is_given = false) {
        double result = 0.0, scale = 1.0;
        for (;; is_given = false) {
            const Level& level = data.levels[row];
            if (level.kind == CONSTANT) return result + scale * level.shift;
            Frame& frame = is_given ? given : level.samples == 0 ? zero : frames[depth];
            if (!is_given && level.samples > 0) draw_reference(level, state, depth, frame);
            double value = frame.value(data, state);
            if (level.debias > 0) value = level.values[0] * value + frame.debiasing(data, state, level);
            value += level.shift;
            if (level.quadratic >= 0) {
                int j = column(state), first = action(frame, j), second = action(frame, j);
                if (first != second) {
                    double gap = frame.q[first] - frame.q[second], total = 0.0, squares = 0.0;
                    for (int pair = 0; pair < level.pairs; pair++) {
                        double one = step(level.quadratic, state, first, depth);
                        double difference = one - step(level.quadratic, state, second, depth) - gap;
                        total += difference;
                        squares += difference * difference;
                    }
                    double pairs = level.pairs;
                    value += (total * total - squares) / (pairs * (pairs - 1.0) * 4.0 * data.temperature);
                }
            }
            if (level.linear < 0) return result + scale * std::min(std::max(value, level.low), level.high);
            int drawn = action(frame, column(state));
            value -= level.by_policy ? frame.policy_mean(data, state) : frame.q[drawn];
            if (std::isfinite(level.low)) {  // clipped: the linear term cannot come last
                value += step(level.linear, state, drawn, depth);
                return result + scale * std::min(std::max(value, level.low), level.high);
            }
            const Level& child = data.levels[level.linear];
            Drawn next = draws(state, drawn, 1, child.rewards);
            result += scale * (value + next.reward * child.reward_share);
            if (next.successor < 0) return result;
            scale *= data.discount, row = level.linear, state = next.successor;
        }
    }
};

static std::vector<Outcome> pair_outcomes(const double* probabilities, const double* successors, const double* rewards,
                                          const double* ends, int branches, bool bernoulli, int width) {
    struct Possible {
        double probability, reward;
        int64_t successor;
    };
    std::vector<Possible> all;
    for (int b = 0; b < branches; b++) {
        int64_t successor = static_cast<int64_t>(successors[b]);
        if (ends[b] != 0.0) successor = -1 - successor;
        if (bernoulli) {  // one word decides the successor and the reward
            all.push_back({probabilities[b] * rewards[b], 1.0, successor});
            all.push_back({probabilities[b] * (1.0 - rewards[b]), 0.0, successor});
        } else {
            all.push_back({probabilities[b], rewards[b], successor});
        }
    }
    std::sort(all.begin(), all.end(), [](auto& one, auto& two) { return one.probability > two.probability; });
    std::vector<Outcome> result(width, Outcome{LAST, 0.0, 0});
    double cumulative = 0.0;
    for (size_t i = 0; i < all.size(); i++) {
        cumulative += all[i].probability;
        bool last = i + 1 == all.size() || all[i + 1].probability == 0.0;
        uint64_t threshold = static_cast<uint64_t>(std::min(cumulative, 1.0 - 0x1.0p-53) * 0x1.0p64) - 1;
        result[i] = {last ? LAST : threshold, all[i].reward, all[i].successor};
    }
    return result;
}

static Data read(const char* path) {
    Numbers numbers(path);
    auto next = [&]() { return numbers.next(); };
    auto array = [&](size_t size) { return numbers.array(size); };
    Data data;
    data.states = next(), data.actions = next();
    int branches = next();
    data.columns = next();
    size_t levels = next(), weight_rows = next();
    bool bernoulli = next();
    data.discount = next(), data.temperature = next();
    data.state_weights = weight_rows > 1;
    int outcomes = bernoulli ? 2 * branches : branches;
    data.width = (outcomes + UNROLLED - 1) / UNROLLED * UNROLLED;
    size_t pairs = static_cast<size_t>(data.states) * data.actions, size = pairs * branches;
    std::vector<double> probabilities = array(size), successors = array(size), rewards = array(size), ends = array(size);
    for (size_t row = 0; row < size; row += branches) {
        std::vector<Outcome> found = pair_outcomes(&probabilities[row], &successors[row], &rewards[row], &ends[row],
                                                   branches, bernoulli, data.width);
        data.outcomes.insert(data.outcomes.end(), found.begin(), found.end());
    }
    data.shifts = array(static_cast<size_t>(data.columns) * data.actions);
    data.weights = array(weight_rows * data.columns);
    data.reference = array(data.actions);
    for (size_t row = 0; row < levels; row++) {
        Level level;
        level.kind = next(), level.samples = next(), level.reference = next(), level.linear = next();
        level.quadratic = next(), level.pairs = next(), level.by_policy = next();
        level.shift = next(), level.low = next(), level.high = next();
        level.debias = next(), level.rewards = next();
        level.reward_share = 1.0 / level.rewards;
        level.block_share = (1 << level.debias) / static_cast<double>(level.samples);
        for (double& weight : level.values) weight = next();
        for (double& weight : level.slopes) weight = next();
        data.levels.push_back(level);
    }
    numbers.end();
    return data;
}

int main(int count, char** words) {
    if (count != 8) return 2;
    Data data = read(words[1]);
    bool returns = std::strcmp(words[2], "returns") == 0;
    int state = std::atoi(words[3]), action = std::atoi(words[4]);
    long samples = std::atol(words[5]);
    int chunks = std::atoi(words[6]);
    uint64_t seed = std::atoll(words[7]);
    int root = static_cast<int>(data.levels.size()) - 1;
    double total = 0.0, square = 0.0;
    uint64_t calls = 0;

    std::clock_t start = std::clock();
    for (int chunk = 0; chunk < chunks; chunk++) {
        Sampler sampler(data, seed * 1000003 + chunk);
        for (long i = 0; i < samples; i++) {
            double value = returns ? sampler.step(data.levels[root].reference, state, action, -1)
                                   : sampler.sample(root, state, 0, true);
            total += value;
            square += value * value;
        }
        calls += sampler.stream.calls;
    }
    double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;

    std::printf("%.9f %llu %ld %.17g %.17g\n", seconds, static_cast<unsigned long long>(calls), samples * chunks, total,
                square);
}
