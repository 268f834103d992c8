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

function(hadal_script_test folder name) # tests/FOLDER/NAME.test.mjs
    add_test(NAME ${folder}_${name} COMMAND ${NODE_PROGRAM} --test ${CMAKE_SOURCE_DIR}/tests/${folder}/${name}.test.mjs)
    set_tests_properties(${folder}_${name} PROPERTIES ENVIRONMENT "${TEST_ENV}" TIMEOUT ${TEST_SECONDS})
endfunction()

# Subcommands as a person runs them.
foreach(name eval convert quantize run bench compare sim doctor profile)
    hadal_script_test(tools ${name})
endforeach()

# The server with the embedded model, over raw HTTP; the load generator; and its held-out tasks, scored.
hadal_script_test(http serve)
hadal_script_test(http load)
hadal_script_test(http score)
if(HADAL_SANITIZE)
    set_tests_properties(http_score PROPERTIES LABELS slow)
endif()

# Suites with npm packages of their own: tests/NAME is copied to build/*/npm/NAME and installed there
# by the fixture npm_NAME; then node runs a file of it.
find_program(NPM_PROGRAM npm)
function(hadal_npm_suite name)
    add_test(NAME npm_${name} COMMAND ${CMAKE_COMMAND} -D NODE=${NODE_PROGRAM} -D NPM=${NPM_PROGRAM}
        -D SOURCE=${CMAKE_SOURCE_DIR}/tests/${name} -D FOLDER=${CMAKE_BINARY_DIR}/npm/${name}
        -P ${CMAKE_SOURCE_DIR}/cmake/npm_ci.cmake)
    set_tests_properties(npm_${name} PROPERTIES FIXTURES_SETUP npm_${name} TIMEOUT 300)
endfunction()
function(hadal_npm_test name file) # then the suites it needs, its own first
    list(GET ARGN 0 suite)
    list(TRANSFORM ARGN PREPEND npm_ OUTPUT_VARIABLE fixtures)
    add_test(NAME ${name} COMMAND ${NODE_PROGRAM} --test ${file} WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/npm/${suite})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${TEST_ENV}" TIMEOUT 900 FIXTURES_REQUIRED "${fixtures}")
    if(HADAL_SANITIZE)
        set_tests_properties(${name} PROPERTIES LABELS slow)
    endif()
endfunction()

hadal_npm_suite(clients)
hadal_npm_test(clients_openai openai.test.mjs clients)
hadal_npm_test(clients_ai ai.test.mjs clients)
hadal_npm_test(clients_tools openai_tools.test.mjs clients)
hadal_npm_test(clients_readme readme.test.mjs clients)

# The page in Chromium; builds without the page have nothing to show.
if(HADAL_WEB_SOURCE)
    hadal_npm_suite(browser)
    hadal_npm_test(browser_page page.test.mjs browser clients)
endif()

# The tokenizer against the reference engine, and DeepSeek-V3's real tokenizer.json.
hadal_npm_suite(tokenizer)
hadal_npm_test(tokenizer_reference reference.test.mjs tokenizer)
hadal_npm_test(tokenizer_nfc nfc.test.mjs tokenizer)
hadal_npm_test(tokenizer_families families.test.mjs tokenizer)
set_tests_properties(test_tokenizer_v3 PROPERTIES FIXTURES_REQUIRED npm_tokenizer)
