// SPDX-License-Identifier: MIT
/// @file
/// All update rules.
#pragma once

#include <lockstep/optimizers/adagrad.hpp>
#include <lockstep/optimizers/adam.hpp>
#include <lockstep/optimizers/adamw.hpp>
#include <lockstep/optimizers/lamb.hpp>
#include <lockstep/optimizers/momentum.hpp>
#include <lockstep/optimizers/moving_average.hpp>
#include <lockstep/optimizers/per_variable.hpp>
#include <lockstep/optimizers/rmsprop.hpp>
#include <lockstep/optimizers/rule.hpp>
#include <lockstep/optimizers/schedule.hpp>
#include <lockstep/optimizers/sgd.hpp>
