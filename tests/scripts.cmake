# Tests that are scripts. Node runs them; when it is absent they fail and say so.
find_program(NODE_PROGRAM node)
if(NOT NODE_PROGRAM)
    set(NODE_PROGRAM node)
endif()

add_test(NAME lint COMMAND ${NODE_PROGRAM} ${CMAKE_SOURCE_DIR}/tools/lint.mjs)
add_test(NAME lint_self_test COMMAND ${NODE_PROGRAM} ${CMAKE_SOURCE_DIR}/tools/lint.mjs --self-test)

# The page's own unit tests, in the build folder where its packages are.
if(HADAL_WEB_SOURCE)
    add_test(NAME web_page COMMAND ${NODE_PROGRAM} --test test/parse.test.mjs WORKING_DIRECTORY ${HADAL_WEB_BUILD})
    set_tests_properties(web_page PROPERTIES TIMEOUT 120)
endif()
