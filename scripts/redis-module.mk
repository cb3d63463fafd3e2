# Builds the module for Redis; see scripts/redis-module, which sets OUT, OBJECTS, FLAGS, INCLUDE and CXX.
#
# libstdc++ is linked in, and no symbol but the entry point is visible, so that the module and others in the same server
# do not use each other's functions.

# client_name.cc needs OpenSSL, for the names of keys, which the module does not write.
sources := $(filter-out src/core/client_name.cc,$(wildcard src/core/*.cc src/algorithms/*.cc src/server/*.cc)) src/protocol/redis_value.cc \
    src/protocol/stored_state.cc
objects := $(sources:src/%.cc=$(OBJECTS)/%.o)
version := $(OBJECTS)/generated/core/version_text.h

$(OUT): $(objects) scripts/redis-module.mk scripts/redis-exports.map
	$(CXX) $(FLAGS) -shared -static-libstdc++ -static-libgcc -Wl,--version-script=scripts/redis-exports.map,--gc-sections,-z,defs,-z,relro,-z,now \
	    -o $@.new $(objects) $(LINK)
	mv $@.new $@

$(version): scripts/embed VERSION
	scripts/embed version $@

$(OBJECTS)/%.o: src/%.cc scripts/redis-module.mk | $(version)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics -fvisibility=hidden -ffunction-sections \
	    -Wall -Wextra -Werror $(FLAGS) -Isrc -I$(OBJECTS)/generated -isystem $(INCLUDE) -MMD -MP -c -o $@ $<

-include $(objects:.o=.d)
