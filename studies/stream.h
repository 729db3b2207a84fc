// What the twins share: the random stream, and the numbers that they read.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

class Numbers {  // doubles in a file, one after the other
    std::vector<double> all;
    size_t place = 0;

   public:
    explicit Numbers(const char* path) {
        std::ifstream file(path, std::ios::binary);
        std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        all.resize(bytes.size() / sizeof(double));
        std::memcpy(all.data(), bytes.data(), all.size() * sizeof(double));
    }

    double next() { return all.at(place++); }

    std::vector<double> array(size_t size) {
        std::vector<double> result(size);
        for (double& number : result) number = next();
        return result;
    }

    void end() const {  // nothing may be left
        if (place != all.size()) throw std::runtime_error("the file of data has the wrong length");
    }
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

    uint64_t word() {
        uint64_t result = rotate(s0 + s3, 23) + s0, shifted = s1 << 17;
        s2 ^= s0, s3 ^= s1, s1 ^= s2, s0 ^= s3, s2 ^= shifted;
        s3 = rotate(s3, 45);
        return result;
    }

    double uniform() { return static_cast<double>(static_cast<int64_t>(word() >> 11)) * 0x1.0p-53; }
};
