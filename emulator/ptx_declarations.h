// Declarations of PTX: variables with their initialisers, and a function's parameters.
#pragma once
#include <string_view>
#include <vector>

#include "emulator/ptx_reader.h"

namespace gacc::emulator {

// Of `.const`, `.shared`, `.local`, `.param`; anything else is global.
Space space_of(std::string_view directive);

// After the space: [.align N] [.attribute(..)] [.vN] .type name[[n]..] [= init] {, name…} ;
// `external` after `.extern`: the sizes come from elsewhere.
std::vector<Variable> read_variables(PtxReader& in, Space space, bool external);

// ( .param .type name, … )
std::vector<Variable> read_parameters(PtxReader& in);

}  // namespace gacc::emulator
