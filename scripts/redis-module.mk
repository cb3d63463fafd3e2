# Builds the module for Redis; see scripts/redis-module, which sets OUT, OBJECTS, FLAGS, INCLUDE and CXX.
#
# libstdc++ is linked in, and no symbol but the entry point is visible, so that the module and others in the same server
# do not use each other's functions.

sources := $(wildcard src/core/*.cc src/algorithms/*.cc src/server/*.cc) src/protocol/redis_value.cc \
    src/protocol/stored_state.cc
objects := $(sources:src/%.cc=$(OBJECTS)/%.o)

$(OUT): $(objects) scripts/redis-module.mk
	$(CXX) $(FLAGS) -shared -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL,--gc-sections,-z,defs,-z,relro,-z,now \
	    -o $@.new $(objects) $(LINK)
	mv $@.new $@

$(OBJECTS)/%.o: src/%.cc scripts/redis-module.mk
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics -fvisibility=hidden -ffunction-sections \
	    -Wall -Wextra -Werror $(FLAGS) -Isrc -isystem $(INCLUDE) -MMD -MP -c -o $@ $<

-include $(objects:.o=.d)
