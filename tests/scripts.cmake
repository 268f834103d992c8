# Tests that are scripts. Node runs them; when it is absent they fail and say so.
find_program(NODE_PROGRAM node)
if(NOT NODE_PROGRAM)
    set(NODE_PROGRAM node)
endif()

add_test(NAME lint COMMAND ${NODE_PROGRAM} ${CMAKE_SOURCE_DIR}/tools/lint.mjs)
add_test(NAME lint_self_test COMMAND ${NODE_PROGRAM} ${CMAKE_SOURCE_DIR}/tools/lint.mjs --self-test)
